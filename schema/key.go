package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// keyDigits is the length of an idempotency key in hex digits (128 bits of SHA-256).
const keyDigits = 32

// IdempotencyKey returns the key of one obligation: the first 32 hex digits of SHA-256 over
// "customer:period:namespace", and over "customer:period:namespace:n" for generation n >= 2.
//
// Nothing else may enter the key. Positions, message ids and times differ between two deliveries of
// one obligation, and a vault key differs between two issues of one run: each of them would turn a
// redelivery into a second charge. The parts must have passed the parser's checks, which keep ':'
// out of them; otherwise two obligations could share a key.
//
// A generation below 1 is a programming error and panics.
func IdempotencyKey(customerID, billingPeriod, namespace string, generation int) string {
	if generation < 1 {
		panic("schema: internal error: key generation " + strconv.Itoa(generation) + " is below 1")
	}
	text := make([]byte, 0, 256)
	text = append(text, customerID...)
	text = append(text, ':')
	text = append(text, billingPeriod...)
	text = append(text, ':')
	text = append(text, namespace...)
	if generation > 1 {
		text = append(text, ':')
		text = strconv.AppendInt(text, int64(generation), 10)
	}
	sum := sha256.Sum256(text)
	var key [keyDigits]byte
	hex.Encode(key[:], sum[:keyDigits/2])
	return string(key[:])
}
