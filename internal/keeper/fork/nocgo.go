//go:build !cgo

package fork

// keepsMemory says that a child keeps all of its parent's memory.
const keepsMemory = false
