//go:build !wasip1

// Command modules is the escape suite's program for WebAssembly: see main.go.
package main

func main() {}
