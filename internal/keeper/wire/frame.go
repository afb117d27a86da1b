package wire

import "encoding/binary"

// The protocol's version, and the oldest that this code still speaks. A hello
// names both; the two sides use the lower of their versions, and a side that is
// too old is refused by a text with both numbers.
//
// A body never changes: what a version adds comes as a kind of its own, so that
// a keeper knows by the frame alone what it has before it, whatever program was
// greeted at the other end.
const (
	Version = 2
	Oldest  = 1
)

// VersionTask is the first that has KindLaunchPlan, KindAdvance, KindTask and
// KindNamespaces.
const VersionTask = 2

// NestVersion is that of what keeper and nest say to each other. A nest stays
// what it was when a keeper becomes its next program.
const NestVersion = 1

// Kind says what a frame is.
type Kind uint8

// What the agent asks of the keeper. Each is answered by OK or Fail under the
// same id, ExitEvent aside, which comes as often as there are exits.
const (
	KindHello Kind = iota + 1
	KindLaunch
	KindRun
	KindSignal
	KindStreams
	KindStreamEnd
	KindResize
	KindCloseStdin
	KindReopen
	KindProcesses
	KindExits
	KindAck
	KindForget
	KindStatus
	KindUpgrade
	KindCancel
	KindShutdown
	KindRelease
	KindLaunchPlan // as KindLaunch; the plan comes as a sealed memory file
	KindAdvance    // lets a parked child go on to where it parks next
	KindTask       // as KindRun, of a Task; its plan, if any, as a sealed memory file
	KindNamespaces // makes namespaces; the answer brings a descriptor of each
)

// What the keeper answers.
const (
	KindOK Kind = iota + 64
	KindFail
	KindExitEvent
	KindNestLost // unasked: the keeper's nest is gone
)

// What keeper and nest say to each other.
const (
	KindNestHello   Kind = iota + 128 // nest → keeper: the first frame
	KindNestItem                      // nest → keeper: something it held
	KindNestReady                     // nest → keeper: that was all
	KindNestPut                       // keeper → nest: hold this, instead of what had the same key
	KindNestDrop                      // keeper → nest: let it go
	KindNestAsk                       // keeper → nest: has this child of yours ended?
	KindNestTold                      // nest → keeper: how it ended
	KindNestReap                      // keeper → nest: its end is on record
	KindNestBinary                    // keeper → nest: the program to start next time
	KindNestQuit                      // keeper → nest: both of us end
	KindNestServing                   // keeper → nest: I have taken everything over
)

// HeaderLen is the length of a frame's header: kind, flags, two zero bytes, and
// the id that ties an answer to its question.
const HeaderLen = 12

// FlagMemfd says that the body stands in a memory file, which is the frame's
// first descriptor.
const FlagMemfd = 1

// SocketKey is the item under which the nest holds the listening socket; the
// keys of processes are paths with a slash.
const SocketKey = "socket"

// MaxInline is the longest body that goes into the frame itself. MaxBody is the
// longest that is taken at all.
const (
	MaxInline = 32 << 10
	MaxBody   = 16 << 20
)

// MaxFrame is the longest frame.
const MaxFrame = HeaderLen + MaxInline

// MaxFDs is how many descriptors one message can carry (SCM_MAX_FD).
const MaxFDs = 253

// Header is a frame's first bytes.
type Header struct {
	Kind  Kind
	Flags uint8
	ID    uint64
}

// Append appends the header to b.
func (h Header) Append(b []byte) []byte {
	b = append(b, byte(h.Kind), h.Flags, 0, 0)
	return binary.LittleEndian.AppendUint64(b, h.ID)
}

// ParseHeader splits a frame. It reports false for what is no frame.
func ParseHeader(b []byte) (Header, []byte, bool) {
	if len(b) < HeaderLen || len(b) > MaxFrame || b[2] != 0 || b[3] != 0 || b[1]&^FlagMemfd != 0 {
		return Header{}, nil, false
	}
	return Header{Kind(b[0]), b[1], binary.LittleEndian.Uint64(b[4:])}, b[HeaderLen:], true
}

// Frame builds a whole frame with its body inside. The caller has checked that
// the body is not longer than MaxInline.
func Frame(k Kind, id uint64, m Message) []byte {
	b := Header{Kind: k, ID: id}.Append(make([]byte, 0, 64))
	if m != nil {
		b = Marshal(b, m)
	}
	return b
}
