package fork

// KeepsMemory is true in builds with C.
const KeepsMemory = keepsMemory
