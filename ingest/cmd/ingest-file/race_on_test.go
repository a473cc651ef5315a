//go:build race

package main

// memoryFactor is how much more the race detector's own books make of a byte.
const memoryFactor = 8
