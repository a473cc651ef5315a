package vaultkey

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func encryptionKey(t *testing.T, fill byte) EncryptionKey {
	t.Helper()
	key, err := ParseEncryptionKey(hex.EncodeToString(bytes.Repeat([]byte{fill}, 32)))
	require.NoError(t, err)
	return key
}

func TestSealedKeyOpensOnlyForItsRun(t *testing.T) {
	t.Parallel()
	sealer, err := NewSealer(encryptionKey(t, 1))
	require.NoError(t, err)
	sealed, keyID, err := sealer.Seal([]byte("vk_secret"), []byte("run 1"))
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "vk_secret")
	require.Equal(t, encryptionKey(t, 1).ID(), keyID)
	plain, err := sealer.Open(sealed, keyID, []byte("run 1"))
	require.NoError(t, err)
	require.Equal(t, "vk_secret", string(plain))

	_, err = sealer.Open(sealed, keyID, []byte("run 2"))
	require.ErrorIs(t, err, ErrCannotOpen)
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		_, err = sealer.Open(changed, keyID, []byte("run 1"))
		require.ErrorIs(t, err, ErrCannotOpen, "byte %d", i)
	}
	for _, short := range [][]byte{nil, sealed[:11], sealed[:12], sealed[:len(sealed)-1]} {
		_, err = sealer.Open(short, keyID, []byte("run 1"))
		require.ErrorIs(t, err, ErrCannotOpen)
	}
}

func TestSameKeySealedTwiceLooksDifferent(t *testing.T) {
	t.Parallel()
	sealer, err := NewSealer(encryptionKey(t, 1))
	require.NoError(t, err)
	seen := map[string]bool{}
	for range 100 {
		sealed, _, err := sealer.Seal([]byte("vk_secret"), nil)
		require.NoError(t, err)
		require.False(t, seen[string(sealed[:12])], "a nonce was used twice")
		seen[string(sealed[:12])] = true
	}
}

func TestChangedEncryptionKeyStillOpensWhatTheOldOneSealed(t *testing.T) {
	t.Parallel()
	before, err := NewSealer(encryptionKey(t, 1))
	require.NoError(t, err)
	sealed, oldID, err := before.Seal([]byte("vk_secret"), []byte("run 1"))
	require.NoError(t, err)
	after, err := NewSealer(encryptionKey(t, 2), encryptionKey(t, 1))
	require.NoError(t, err)
	plain, err := after.Open(sealed, oldID, []byte("run 1"))
	require.NoError(t, err)
	require.Equal(t, "vk_secret", string(plain))
	_, newID, err := after.Seal(plain, nil)
	require.NoError(t, err)
	require.Equal(t, encryptionKey(t, 2).ID(), newID)

	without, err := NewSealer(encryptionKey(t, 2))
	require.NoError(t, err)
	_, err = without.Open(sealed, oldID, []byte("run 1"))
	require.ErrorIs(t, err, ErrUnknownEncryptionKey)
	require.ErrorContains(t, err, oldID)
	_, err = without.Open(sealed, newID, []byte("run 1"))
	require.ErrorIs(t, err, ErrCannotOpen, "an id that lies does not help")
}

func TestEncryptionKeyIsReadInEveryUsualForm(t *testing.T) {
	t.Parallel()
	raw := bytes.Repeat([]byte{0xfb}, 32) // base64 with + and /, or - and _
	for _, text := range []string{
		base64.StdEncoding.EncodeToString(raw), base64.StdEncoding.EncodeToString(raw) + "\n", base64.RawStdEncoding.EncodeToString(raw),
		base64.URLEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw), hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)),
	} {
		key, err := ParseEncryptionKey(text)
		require.NoError(t, err, text)
		require.Equal(t, encryptionKey(t, 0xfb), key)
	}
	require.Len(t, encryptionKey(t, 1).ID(), 8)
	require.Equal(t, "72cd6e84", encryptionKey(t, 1).ID(), "first 8 hex digits of SHA-256; stored with every ciphertext")
}

func TestWrongEncryptionKeySaysHowToMakeOne(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "secret", base64.StdEncoding.EncodeToString(make([]byte, 31)), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 33)),
		hex.EncodeToString(bytes.Repeat([]byte{1}, 31)), "not base64 at all!", base64.StdEncoding.EncodeToString(make([]byte, 32)),
	} {
		_, err := ParseEncryptionKey(text)
		require.ErrorContains(t, err, "VAULT_ENCRYPTION_KEY", text)
		require.ErrorContains(t, err, "openssl rand -base64 32")
		if text != "" {
			require.NotContains(t, err.Error(), text)
		}
	}
	_, err := NewSealer(EncryptionKey{})
	require.ErrorContains(t, err, "VAULT_ENCRYPTION_KEY")
}

func TestEncryptionKeyPrintsItsIDAlone(t *testing.T) {
	t.Parallel()
	key := encryptionKey(t, 7)
	sealer, err := NewSealer(key)
	require.NoError(t, err)
	shown := fmt.Sprintf("%v %+v %#v %s", key, key, key, key.LogValue()) + fmt.Sprintf("%v %+v %#v", sealer, sealer, sealer)
	require.NotContains(t, shown, "7 7 7")
	require.NotContains(t, shown, "0x7, 0x7")
	require.NotContains(t, shown, "0707")
}
