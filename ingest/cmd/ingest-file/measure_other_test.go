//go:build !linux

package main

func measure(string) { panic("measured on Linux alone") }
