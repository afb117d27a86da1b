package pin

// ReadyUsers returns how many sets of namespaces with a user namespace nobody has taken yet.
func (p *Pins) ReadyUsers() int {
	p.users.mu.Lock()
	defer p.users.mu.Unlock()
	return len(p.users.ready)
}
