package vxlan

// Renew does a Keyring's work of each minute.
func (k *Keyring) Renew() error { return k.renew() }
