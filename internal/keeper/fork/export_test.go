package fork

// KeepsMemory is true in builds with C.
const KeepsMemory = keepsMemory

// PidFD returns the pidfd of the launcher's process.
func (l *Launcher) PidFD() int { return l.pidfd }
