package wire

import (
	"encoding/binary"
	"strconv"
)

// Magic identifies the protocol in a hello.
const Magic = "longshore keeper"

// Hello is the first message of both sides.
type Hello struct {
	Magic   string
	Version uint64
	Oldest  uint64
	Program string // the sender's program version, for people
}

// Fields implements Message.
func (m *Hello) Fields(c *Codec) {
	c.Str(&m.Magic)
	c.Uint(&m.Version)
	c.Uint(&m.Oldest)
	c.Str(&m.Program)
	if c.reading && !c.bad && m.Magic == Magic && m.Version > Version {
		c.b = nil // a later version may add fields; it must still be recognized
	}
}

// Agree returns the version that both sides speak, or 0.
func Agree(mine, theirs Hello) uint64 {
	v := min(mine.Version, theirs.Version)
	if v < mine.Oldest || v < theirs.Oldest || theirs.Magic != Magic {
		return 0
	}
	return v
}

// Class is the class of a failure.
type Class uint8

// The classes; they stand for those of errdefs.
const (
	Internal Class = iota
	NotFound
	AlreadyExists
	InvalidArgument
	FailedPrecondition
	Unavailable
	ResourceExhausted
	Aborted
	CommandFailed // Status and Stderr are set
	Ended         // the process has ended; a client that does not know it takes it for Internal
)

// Fail is the answer to a request that failed.
type Fail struct {
	Class Class
	Text  string
	// Status is the exit status of the command, for CommandFailed. For other classes it is the
	// errno of the failed execve of a plan; 0 if there is none or the keeper is too old to report
	// it.
	Status int
	Stderr string
}

// Fields implements Message.
func (m *Fail) Fields(c *Codec) {
	small(c, &m.Class)
	c.Str(&m.Text)
	small(c, &m.Status)
	c.Str(&m.Stderr)
}

// Ref names a process.
type Ref struct{ Container, Process string }

// Fields implements Message.
func (m *Ref) Fields(c *Codec) {
	c.Str(&m.Container)
	c.Str(&m.Process)
}

// Command is a program to run.
type Command struct {
	Args, Env   []string
	Dir         string
	HideUnified bool
}

// Fields implements Message.
func (m *Command) Fields(c *Codec) {
	c.strs(&m.Args)
	c.strs(&m.Env)
	c.Str(&m.Dir)
	c.Bool(&m.HideUnified)
}

// Task is a program to run that needs more than a command line.
type Task struct {
	Command Command // not used by a planned one
	// Path is the program's, Args[0] when empty.
	Path string
	// Input is the program's standard input.
	Input []byte
	// Planned says that a plan comes with the request; the forked child runs it in the
	// namespaces of Target.
	Planned bool
	Target  Ref
}

// Fields implements Message.
func (m *Task) Fields(c *Codec) {
	m.Command.Fields(c)
	c.Str(&m.Path)
	c.Bytes(&m.Input)
	c.Bool(&m.Planned)
	m.Target.Fields(c)
}

// Result is how a command ended.
type Result struct {
	Status int
	Stdout []byte
	Stderr string
}

// Fields implements Message.
func (m *Result) Fields(c *Codec) {
	small(c, &m.Status)
	c.Bytes(&m.Stdout)
	c.Str(&m.Stderr)
}

// Stdin is the mode of a process's standard input.
type Stdin uint8

// The modes of Stdin.
const (
	StdinClosed Stdin = iota
	StdinOpen
	StdinOnce
)

// Sink is a destination of output.
type Sink struct {
	CRI            bool
	Stdout, Stderr bool
	// Path is absolute. Two slashes in it mark the end of the trusted directory: the
	// rest is resolved without following links. A keeper that does not know that
	// treats it as an ordinary path.
	Path string
	// MaxBytes is negative for CRI records without tags, which have no limit. A keeper that
	// does not know those writes the tags.
	MaxBytes int64
	// MaxFiles is negative for a sink with numbered files. A keeper that does not know
	// those writes to the first file only.
	MaxFiles int
}

// Fields implements Message.
func (m *Sink) Fields(c *Codec) {
	c.Bool(&m.CRI)
	c.Bool(&m.Stdout)
	c.Bool(&m.Stderr)
	c.Str(&m.Path)
	c.Int(&m.MaxBytes)
	small(c, &m.MaxFiles)
}

// IO is a process's standard streams.
type IO struct {
	TTY        bool
	Cols, Rows uint16
	Stdin      Stdin
	Hold       bool
	Sinks      []Sink
}

// Fields implements Message.
func (m *IO) Fields(c *Codec) {
	c.Bool(&m.TTY)
	small(c, &m.Cols)
	small(c, &m.Rows)
	small(c, &m.Stdin)
	c.Bool(&m.Hold)
	List(c, &m.Sinks, func(s *Sink) { s.Fields(c) })
}

// Want says which streams a client wants.
type Want struct{ Stdin, Stdout, Stderr, Exclusive bool }

// Fields implements Message.
func (m *Want) Fields(c *Codec) {
	c.Bool(&m.Stdin)
	c.Bool(&m.Stdout)
	c.Bool(&m.Stderr)
	c.Bool(&m.Exclusive)
}

// Level is a cgroup with out-of-memory counters to report.
type Level struct{ Path, Local string }

// Fields implements Message.
func (m *Level) Fields(c *Codec) {
	c.Str(&m.Path)
	c.Str(&m.Local)
}

// LaunchKind is the way of starting a process.
type LaunchKind uint8

// The kinds of launches.
const (
	LaunchCommand LaunchKind = iota + 1 // a command that starts the process and ends
	LaunchPlan                          // a plan that the forked child runs
)

// Launch asks the keeper to start a process.
type Launch struct {
	Kind          LaunchKind
	Ref           Ref
	Command       Command
	PidFile       string
	ConsoleSocket string
	IO            IO
	Attach        bool
	Want          Want
	UID, GID      uint32
	Levels        []Level
	Peak          string
	Plan          []byte // for LaunchPlan, unless it comes in a file
	Park          bool   // a planned process parks until KindRelease
	Target        Ref    // a planned process joins its namespaces
}

// Fields implements Message.
func (m *Launch) Fields(c *Codec) {
	small(c, &m.Kind)
	m.Ref.Fields(c)
	m.Command.Fields(c)
	c.Str(&m.PidFile)
	c.Str(&m.ConsoleSocket)
	m.IO.Fields(c)
	c.Bool(&m.Attach)
	m.Want.Fields(c)
	small(c, &m.UID)
	small(c, &m.GID)
	c.Levels(&m.Levels)
	c.Str(&m.Peak)
	c.Bytes(&m.Plan)
	c.Bool(&m.Park)
	m.Target.Fields(c)
}

// Launched is the answer to Launch. Its descriptors are those of Opened.
type Launched struct {
	Pid    int
	Opened Opened
}

// Fields implements Message.
func (m *Launched) Fields(c *Codec) {
	small(c, &m.Pid)
	m.Opened.Fields(c)
}

// Opened says which descriptors of a stream come with the answer, in this
// order: stdin, stdout, stderr, pidfd.
type Opened struct {
	Stream                       uint64 // 0: no stream
	Stdin, Stdout, Stderr, Pidfd bool
	TTY                          bool
}

// Fields implements Message.
func (m *Opened) Fields(c *Codec) {
	c.Uint(&m.Stream)
	c.Bool(&m.Stdin)
	c.Bool(&m.Stdout)
	c.Bool(&m.Stderr)
	c.Bool(&m.Pidfd)
	c.Bool(&m.TTY)
}

// StreamsRequest asks for a stream.
type StreamsRequest struct {
	Ref  Ref
	Want Want
}

// Fields implements Message.
func (m *StreamsRequest) Fields(c *Codec) {
	m.Ref.Fields(c)
	m.Want.Fields(c)
}

// StreamEnd says that the client has closed a stream, or only its stdin.
type StreamEnd struct {
	Stream    uint64
	StdinOnly bool
}

// Fields implements Message.
func (m *StreamEnd) Fields(c *Codec) {
	c.Uint(&m.Stream)
	c.Bool(&m.StdinOnly)
}

// SignalRequest sends a signal.
type SignalRequest struct {
	Ref    Ref
	Signal int
}

// Fields implements Message.
func (m *SignalRequest) Fields(c *Codec) {
	m.Ref.Fields(c)
	small(c, &m.Signal)
}

// ResizeRequest sets a terminal's size.
type ResizeRequest struct {
	Ref        Ref
	Cols, Rows uint16
}

// Fields implements Message.
func (m *ResizeRequest) Fields(c *Codec) {
	m.Ref.Fields(c)
	small(c, &m.Cols)
	small(c, &m.Rows)
}

// Supervised is one process that the keeper knows.
type Supervised struct {
	Ref     Ref
	Pid     int
	Running bool
	Lost    uint64
}

// Fields implements Message.
func (m *Supervised) Fields(c *Codec) {
	m.Ref.Fields(c)
	small(c, &m.Pid)
	c.Bool(&m.Running)
	c.Uint(&m.Lost)
}

// Processes answers KindProcesses.
type Processes struct{ List []Supervised }

// Fields implements Message.
func (m *Processes) Fields(c *Codec) {
	List(c, &m.List, func(s *Supervised) { s.Fields(c) })
}

// Exit describes how a process ended.
type Exit struct {
	Ref      Ref
	Pid      int
	Code     int // of a process that a signal ended: 1 if the kernel has written a core dump
	Signal   int
	Nanos    int64 // since 1970
	Lost     bool  // its exit status is lost
	OOMKills []uint64
	OOMLocal []uint64
	Peak     uint64
	LostOut  uint64
}

// Fields implements Message.
func (m *Exit) Fields(c *Codec) {
	m.Ref.Fields(c)
	small(c, &m.Pid)
	small(c, &m.Code)
	small(c, &m.Signal)
	c.Int(&m.Nanos)
	c.Bool(&m.Lost)
	c.Uints(&m.OOMKills)
	c.Uints(&m.OOMLocal)
	c.Uint(&m.Peak)
	c.Uint(&m.LostOut)
}

// recordVersion starts every record on disk or in the nest.
const recordVersion = 1

// Record is Marshal with the record's version in front.
func Record(m Message) []byte { return AppendRecord(nil, m) }

// AppendRecord is Record, appended to b.
func AppendRecord(b []byte, m Message) []byte { return Marshal(append(b, recordVersion), m) }

// ParseRecord decodes a Record. It reports false for an unknown version too.
func ParseRecord(b []byte, m Message) bool {
	return len(b) > 0 && b[0] == recordVersion && Unmarshal(b[1:], m)
}

// checkedVersion starts a record on disk that has a checksum of the rest after it. Records of the
// former recordVersion may still be on disk.
const checkedVersion = 2

// CheckedRecord is Record with a checksum, because a disk may change its content.
func CheckedRecord(m Message) []byte {
	body := Marshal(nil, m)
	return append(binary.LittleEndian.AppendUint64([]byte{checkedVersion}, sum(body)), body...)
}

// ParseChecked decodes a CheckedRecord, and a Record of an earlier release.
func ParseChecked(b []byte, m Message) bool {
	const head = 1 + 8
	if len(b) < head || b[0] != checkedVersion {
		return ParseRecord(b, m)
	}
	return binary.LittleEndian.Uint64(b[1:]) == sum(b[head:]) && Unmarshal(b[head:], m)
}

// sum is FNV-1a.
func sum(b []byte) uint64 {
	hash := uint64(14695981039346656037)
	for _, c := range b {
		hash = (hash ^ uint64(c)) * 1099511628211
	}
	return hash
}

// Status answers KindStatus.
type Status struct {
	Program   string
	KeeperPid int
	NestPid   int
	Started   int64 // nanoseconds since 1970
	Processes int
	Pending   int
	Lost      uint64
}

// Fields implements Message.
func (m *Status) Fields(c *Codec) {
	c.Str(&m.Program)
	small(c, &m.KeeperPid)
	small(c, &m.NestPid)
	c.Int(&m.Started)
	small(c, &m.Processes)
	small(c, &m.Pending)
	c.Uint(&m.Lost)
}

// Upgrade asks the keeper to become another program.
type Upgrade struct{ Path string }

// Fields implements Message.
func (m *Upgrade) Fields(c *Codec) { c.Str(&m.Path) }

// Cancel stops the command of an earlier request.
type Cancel struct{ ID uint64 }

// Fields implements Message.
func (m *Cancel) Fields(c *Codec) { c.Uint(&m.ID) }

// HeldName is the name under which something is held.
type HeldName struct{ Name string }

// Fields implements Message.
func (m *HeldName) Fields(c *Codec) { c.Str(&m.Name) }

// HeldNames answers KindHeldNames.
type HeldNames struct{ List []string }

// Fields implements Message.
func (m *HeldNames) Fields(c *Codec) { c.strs(&m.List) }

// Mismatch says why two sides cannot talk to each other.
func Mismatch(mine, theirs Hello) string {
	return "this side speaks protocol " + span(mine) + ", the other " + span(theirs)
}

func span(h Hello) string {
	if h.Oldest == h.Version {
		return "version " + strconv.FormatUint(h.Version, 10)
	}
	return "versions " + strconv.FormatUint(h.Oldest, 10) + " to " + strconv.FormatUint(h.Version, 10)
}
