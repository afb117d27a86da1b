//go:build cgo

package fork

// keepsMemory says that a child keeps all of its maker's memory: the C library
// has the kernel write to a thread's (rseq), which must not be missing. What is
// shipped is built without C; tests with the race detector are not.
const keepsMemory = true
