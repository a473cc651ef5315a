package file

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// container reads the blocks of an Avro object container file. It is written out here because hamba/avro's own reader makes buffers as
// large as a file says, before and after decompression, and a file may say anything.
type container struct {
	in     *input
	schema []byte
	codec  string
	sync   [16]byte
}

const (
	avroMagic = "Obj\x01"
	// maxHeaderBytes bounds the metadata of a container, in bytes.
	maxHeaderBytes = 1 << 20
	// maxBlockBytes bounds a block, compressed and decompressed, in bytes.
	maxBlockBytes = 64 << 20
)

// errCodec says that the blocks are compressed in a way that is not known here.
var errCodec = errors.New("unknown compression")

// contentError says what is wrong with the bytes of a container.
type contentError struct{ what string }

func (e *contentError) Error() string { return e.what }

func contentErrorf(format string, args ...any) error {
	return &contentError{fmt.Sprintf(format, args...)}
}

// openContainer reads the header.
func openContainer(in *input) (*container, error) {
	magic := make([]byte, len(avroMagic))
	if err := in.full(magic); err != nil {
		return nil, err
	}
	if string(magic) != avroMagic {
		return nil, contentErrorf("it does not begin as an Avro object container file")
	}
	c := &container{in: in, codec: "null"}
	if err := c.readMetadata(); err != nil {
		return nil, err
	}
	if err := in.full(c.sync[:]); err != nil {
		return nil, err
	}
	switch c.codec {
	case "null", "deflate", "snappy", "zstandard":
		return c, nil
	}
	return nil, fmt.Errorf("%w %q: write the file with null, deflate, snappy or zstandard", errCodec, cutText(c.codec))
}

func (c *container) readMetadata() error {
	left := maxHeaderBytes
	for {
		count, err := c.in.long()
		if err != nil || count == 0 {
			return err
		}
		if count < 0 {
			count = -count
			if _, err := c.in.long(); err != nil { // the size of these entries
				return err
			}
		}
		for ; count != 0; count-- {
			key, err := c.in.shortBytes(&left)
			if err != nil {
				return err
			}
			value, err := c.in.shortBytes(&left)
			if err != nil {
				return err
			}
			switch string(key) {
			case "avro.schema":
				c.schema = value
			case "avro.codec":
				c.codec = string(value)
			}
		}
	}
}

// block is one block, decompressed.
type block struct {
	count int64
	data  []byte
	// raw is what is kept of the block where it cannot be read: its first bytes as they stand in the file.
	raw []byte
}

// next reads a block; io.EOF when there is none. A *contentError with skipped says that this block alone is unreadable; without, that the
// file is from here on.
func (c *container) next() (b block, skipped bool, err error) {
	if _, err := c.in.Peek(1); err != nil {
		return b, false, err
	}
	if b.count, err = c.in.long(); err != nil {
		return b, false, err
	}
	size, err := c.in.long()
	switch {
	case err != nil:
		return b, false, err
	case b.count < 0 || size < 0:
		return b, false, contentErrorf("a block of %d records and %d bytes cannot be", b.count, size)
	case size > maxBlockBytes:
		if b.raw, err = c.skip(size); err != nil {
			return b, false, err
		}
		return b, true, contentErrorf("a block of %d bytes is too large: at most %d are read", size, maxBlockBytes)
	}
	stored, err := c.in.grown(int(size))
	b.raw = stored[:min(len(stored), prefixBytes)]
	if err == nil {
		err = c.checkSync()
	}
	if err != nil {
		return b, false, err
	}
	if size > 0 {
		b.data, err = c.decompress(stored)
	}
	return b, err != nil, err
}

func (c *container) skip(size int64) (raw []byte, err error) {
	if raw, err = c.in.grown(prefixBytes); err != nil {
		return raw, err
	}
	n, err := io.CopyN(io.Discard, c.in.Reader, size-prefixBytes)
	c.in.at += n
	if err != nil {
		return raw, err
	}
	return raw, c.checkSync()
}

// checkSync reads the marker behind a block. Without it nobody knows where the next one begins.
func (c *container) checkSync() error {
	var sync [16]byte
	if err := c.in.full(sync[:]); err != nil {
		return err
	}
	if sync != c.sync {
		return contentErrorf("the marker behind a block is not the file's")
	}
	return nil
}

func (c *container) decompress(stored []byte) ([]byte, error) {
	switch c.codec {
	case "deflate":
		data, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(stored)), maxBlockBytes+1))
		if err != nil {
			return nil, contentErrorf("a block cannot be decompressed (%v)", err)
		}
		return bounded(data)
	case "snappy":
		return unsnap(stored)
	case "zstandard":
		d, err := zstd.NewReader(bytes.NewReader(stored), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlockBytes), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, contentErrorf("a block cannot be decompressed (%v)", err)
		}
		defer d.Close()
		data, err := io.ReadAll(io.LimitReader(d, maxBlockBytes+1))
		if err != nil {
			return nil, contentErrorf("a block cannot be decompressed (%v)", err)
		}
		return bounded(data)
	}
	return stored, nil
}

func bounded(data []byte) ([]byte, error) {
	if len(data) > maxBlockBytes {
		return nil, contentErrorf("a block is too large when decompressed: at most %d bytes are read", maxBlockBytes)
	}
	return data, nil
}

// unsnap decompresses a block with the checksum that Avro puts behind it.
func unsnap(stored []byte) ([]byte, error) {
	const checksumBytes = 4
	end := len(stored) - checksumBytes
	if end < 0 {
		return nil, contentErrorf("a block has no checksum")
	}
	if size, err := snappy.DecodedLen(stored[:end]); err != nil || size > maxBlockBytes {
		return nil, contentErrorf("a block is broken, or too large when decompressed: at most %d bytes are read", maxBlockBytes)
	}
	data, err := snappy.Decode(nil, stored[:end])
	if err != nil {
		return nil, contentErrorf("a block cannot be decompressed (%v)", err)
	}
	if crc32.ChecksumIEEE(data) != binary.BigEndian.Uint32(stored[end:]) {
		return nil, contentErrorf("a block's checksum is wrong")
	}
	return data, nil
}

// full fills b.
func (in *input) full(b []byte) error {
	n, err := io.ReadFull(in.Reader, b)
	in.at += int64(n)
	if err != nil {
		return cutOff(err)
	}
	return nil
}

// grown reads n bytes into a buffer that grows with what is there: a file of a few bytes must not cost what it says.
func (in *input) grown(n int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(in.Reader, int64(n)))
	in.at += int64(len(data))
	if err == nil && len(data) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return data, cutOff(err)
	}
	return data, nil
}

// shortBytes reads bytes behind their length, and takes both off left.
func (in *input) shortBytes(left *int) ([]byte, error) {
	n, err := in.long()
	if err != nil {
		return nil, err
	}
	if *left -= binary.MaxVarintLen64; n < 0 || n > int64(*left) {
		return nil, contentErrorf("the header has more than %d bytes", maxHeaderBytes)
	}
	*left -= int(n)
	return in.grown(int(n))
}

// long reads a number as Avro writes it.
func (in *input) long() (int64, error) {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b, err := in.readByte()
		if err != nil {
			return 0, cutOff(err)
		}
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return int64(n>>1) ^ -int64(n&1), nil // zigzag
		}
	}
	return 0, contentErrorf("a number has more than 64 bits")
}

// cutOff names the end of the file where more belongs.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return contentErrorf("it is cut off")
	}
	return err
}
