package wire

// Namespaces asks for a user namespace and other namespaces that it owns.
type Namespaces struct {
	UIDs, GIDs []IDRange
	// Kinds are the names of the wanted files below /proc/PID/ns: user, and net, ipc
	// or uts, which the user namespace is to own. The descriptors come in this order.
	Kinds []string
}

// Fields implements Message.
func (m *Namespaces) Fields(c *Codec) {
	List(c, &m.UIDs, func(r *IDRange) { r.Fields(c) })
	List(c, &m.GIDs, func(r *IDRange) { r.Fields(c) })
	c.strs(&m.Kinds)
}

// IDRange maps Size ids from Inside a user namespace to Outside.
type IDRange struct{ Inside, Outside, Size uint32 }

// Fields implements Message.
func (m *IDRange) Fields(c *Codec) {
	small(c, &m.Inside)
	small(c, &m.Outside)
	small(c, &m.Size)
}
