package vxlan

// Renew does what a Keyring does each minute.
func (k *Keyring) Renew() error { return k.renew() }
