package vaultkey

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// Seal encrypts plain with the primary key under a random nonce and binds it to additionalData, which
// Open must be given again: a sealed key copied to another run's row does not open there.
func (s *Sealer) Seal(plain, additionalData []byte) (ciphertext []byte, keyID string, err error) {
	aead, err := aeadOf(s.primary)
	if err != nil {
		return nil, "", fmt.Errorf("seal: %w", err)
	}
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(plain)+aead.Overhead())
	if _, err := rand.Read(nonce); err != nil {
		return nil, "", fmt.Errorf("seal: make a nonce: %w", err)
	}
	return aead.Seal(nonce, nonce, plain, additionalData), s.primary.ID(), nil
}

// Open decrypts what Seal made with the encryption key of this id. ErrUnknownEncryptionKey says that no
// such key was given, ErrCannotOpen that the ciphertext or the additional data were changed.
func (s *Sealer) Open(ciphertext []byte, keyID string, additionalData []byte) ([]byte, error) {
	key, ok := s.keys[keyID]
	if !ok {
		return nil, fmt.Errorf("open vault key sealed with encryption key %q: %w", keyID, ErrUnknownEncryptionKey)
	}
	aead, err := aeadOf(key)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if len(ciphertext) < aead.NonceSize() {
		return nil, ErrCannotOpen
	}
	plain, err := aead.Open(nil, ciphertext[:aead.NonceSize()], ciphertext[aead.NonceSize():], additionalData)
	if err != nil {
		return nil, ErrCannotOpen
	}
	return plain, nil
}

// Errors of Open.
var (
	ErrUnknownEncryptionKey = errors.New("unknown encryption key")
	ErrCannotOpen           = errors.New("the sealed vault key was changed or belongs to another run")
)

// Sealer keeps vault keys encrypted with AES-256-GCM. It is safe for concurrent use.
type Sealer struct {
	primary EncryptionKey
	keys    map[string]EncryptionKey
}

// String shows which encryption key seals.
func (s *Sealer) String() string { return "sealer with " + s.primary.String() }

// GoString is String, so that %#v shows no key either.
func (s *Sealer) GoString() string { return s.String() }

// NewSealer seals with primary and opens with it and the others, which are keys of earlier times.
func NewSealer(primary EncryptionKey, others ...EncryptionKey) (*Sealer, error) {
	s := &Sealer{primary: primary, keys: map[string]EncryptionKey{}}
	for _, key := range append([]EncryptionKey{primary}, others...) {
		if key == (EncryptionKey{}) {
			return nil, errors.New("sealer: an encryption key is empty; " + howToMake)
		}
		if known, taken := s.keys[key.ID()]; taken && known != key {
			return nil, fmt.Errorf("sealer: two encryption keys share the id %s; replace one of them", key.ID())
		}
		s.keys[key.ID()] = key
	}
	return s, nil
}

// encryptionKeyBytes is the length of an AES-256 key.
const encryptionKeyBytes = 32

const howToMake = "set VAULT_ENCRYPTION_KEY to 32 random bytes, as made by: openssl rand -base64 32"

// EncryptionKey is the key of a Sealer. It prints itself as its id.
type EncryptionKey struct {
	bytes [encryptionKeyBytes]byte
}

// ParseEncryptionKey reads 32 bytes in base64 (either alphabet, with or without padding) or as 64 hex digits.
func ParseEncryptionKey(text string) (EncryptionKey, error) {
	text = strings.TrimSpace(text)
	raw, err := decodeKey(text)
	switch {
	case text == "":
		return EncryptionKey{}, errors.New("the encryption key is empty; " + howToMake)
	case err != nil:
		return EncryptionKey{}, errors.New("the encryption key is neither base64 nor hex; " + howToMake)
	case len(raw) != encryptionKeyBytes:
		return EncryptionKey{}, fmt.Errorf("the encryption key has %d bytes; %s", len(raw), howToMake)
	}
	key := EncryptionKey{bytes: [encryptionKeyBytes]byte(raw)}
	if key == (EncryptionKey{}) {
		return EncryptionKey{}, errors.New("the encryption key is all zeros; " + howToMake)
	}
	return key, nil
}

// ID names the key without telling it: the first 8 hex digits of its SHA-256.
func (k EncryptionKey) ID() string {
	sum := sha256.Sum256(k.bytes[:])
	return hex.EncodeToString(sum[:4])
}

// String shows the key's id.
func (k EncryptionKey) String() string { return "encryption key " + k.ID() }

// GoString is String, so that %#v shows no key either.
func (k EncryptionKey) GoString() string { return k.String() }

// LogValue shows the key's id.
func (k EncryptionKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

func decodeKey(text string) ([]byte, error) {
	if len(text) == 2*encryptionKeyBytes {
		if raw, err := hex.DecodeString(text); err == nil {
			return raw, nil
		}
	}
	text = strings.TrimRight(text, "=")
	if raw, err := base64.RawStdEncoding.DecodeString(text); err == nil {
		return raw, nil
	}
	return base64.RawURLEncoding.DecodeString(text)
}

func aeadOf(key EncryptionKey) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key.bytes[:])
	if err != nil {
		return nil, fmt.Errorf("cipher of %s: %w", key, err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("gcm of %s: %w", key, err)
	}
	return aead, nil
}
