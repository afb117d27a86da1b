//go:build !cgo

package fork

// keepsMemory says that a child keeps all of its maker's memory.
const keepsMemory = false
