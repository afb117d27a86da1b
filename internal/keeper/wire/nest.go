package wire

// Role is the kind of a descriptor in the nest.
type Role uint8

// The roles. RoleSocket is the keeper's listening socket.
const (
	RoleStdin Role = iota + 1
	RoleStdout
	RoleStderr
	RolePty
	RolePidfd
	RoleSocket
	RoleCommand // pidfd of a launch's command
	RoleConsole // socket over which a launch's command sends the pty
	RolePark    // pipe that releases a parked child
	RoleErrors  // pipe for its failure report
	// RoleSink and the roles after it are the process's FIFO sinks, by their index; in an item with
	// HeldPrefix, the files of an agent.
	RoleSink
)

// NestHello is the nest's first frame.
type NestHello struct {
	Version uint64
	Pid     int
	// Restarts counts the keepers that died before this one.
	Restarts uint64
}

// Fields implements Message.
func (m *NestHello) Fields(c *Codec) {
	c.Uint(&m.Version)
	small(c, &m.Pid)
	c.Uint(&m.Restarts)
}

// Item has descriptors by role, pids with exits that must not be lost, and a record that only the
// keeper reads. The descriptors come with the frame, in the order of Roles.
type Item struct {
	Key   string
	Roles []Role
	Pids  []int
	Blob  []byte
	// Keep are roles of descriptors that the nest keeps from the item before. The frame carries the
	// descriptors of the other roles. The nest closes those that are in neither list.
	Keep []Role
}

// Fields implements Message.
func (m *Item) Fields(c *Codec) {
	c.Str(&m.Key)
	List(c, &m.Roles, func(r *Role) { small(c, r) })
	List(c, &m.Pids, func(p *int) { small(c, p) })
	c.Bytes(&m.Blob)
	List(c, &m.Keep, func(r *Role) { small(c, r) })
}

// HandedItem is an item with inherited descriptors, by their numbers, in the order of the item's
// roles.
type HandedItem struct {
	Item Item
	FDs  []uint64
}

// Fields implements Message.
func (m *HandedItem) Fields(c *Codec) {
	m.Item.Fields(c)
	c.Uints(&m.FDs)
}

// MaxHanded bounds the memory file with the items that a nest starts with.
const MaxHanded = 256 << 20

// HandedItems are the items that a nest starts with.
type HandedItems struct{ List []HandedItem }

// Fields implements Message.
func (m *HandedItems) Fields(c *Codec) {
	List(c, &m.List, func(it *HandedItem) { it.Fields(c) })
}

// Drop names an item.
type Drop struct{ Key string }

// Fields implements Message.
func (m *Drop) Fields(c *Codec) { c.Str(&m.Key) }

// Child asks about a child of the nest, or answers.
type Child struct {
	Pid   int
	Ended bool
	Wait  uint32 // as wait4 returns it
	Nanos int64  // when the nest saw it end, since 1970
	Gone  bool   // it is not a child of the nest
}

// Fields implements Message.
func (m *Child) Fields(c *Codec) {
	small(c, &m.Pid)
	c.Bool(&m.Ended)
	small(c, &m.Wait)
	c.Int(&m.Nanos)
	c.Bool(&m.Gone)
}

// Program names a binary.
type Program struct{ Path string }

// Fields implements Message.
func (m *Program) Fields(c *Codec) { c.Str(&m.Path) }
