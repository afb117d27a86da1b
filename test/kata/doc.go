// Package kata drives a real longshore-guest over ttrpc, as Kata's shim does.
package kata
