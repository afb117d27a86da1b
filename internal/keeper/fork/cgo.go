//go:build cgo

package fork

// keepsMemory says that a child keeps all of its parent's memory. The C library has
// the kernel write to a thread's memory (rseq), which must stay mapped. The released
// programs are built without cgo; tests with the race detector are not.
const keepsMemory = true
