package wire

import (
	"encoding/binary"

	"github.com/longshore/longshore/internal/weaken"
)

// The protocol's version, and the oldest one that this code supports. A hello names
// both. The two sides use the lower of their versions; a side that is too old is
// refused with an error that names both versions.
//
// The body of a kind never changes: a version adds new kinds. A keeper therefore knows from the
// frame alone how to decode it.
const (
	Version = 5
	Oldest  = 1
)

// Newest returns the version that this program offers: Version, except in builds for tests.
func Newest() uint64 { return uint64(weaken.Mark("keeper", Version)) }

// OldestSpoken returns the oldest version that this program accepts: Oldest, except in builds for tests.
func OldestSpoken() uint64 { return uint64(weaken.Mark("keeper-oldest", Oldest)) }

// VersionTask is the first version with KindLaunchPlan, KindAdvance, KindTask and
// KindNamespaces.
const VersionTask = 2

// VersionGiven is the first version with KindLaunchGiven, and has plans of format version 3.
const VersionGiven = 3

// VersionHold is the first version with KindHold, KindHeld, KindDropHeld and KindHeldNames.
const VersionHold = 4

// VersionCopies is the first version with KindCopies.
const VersionCopies = 5

// The limits of files held for agents: descriptors under one name, names, and the length of one.
const (
	MaxHeld     = 4
	MaxNames    = 4096
	MaxHeldName = 255
)

// MaxGiven bounds the given descriptors of a program.
const MaxGiven = 64

// Handover is the number of the format of a keeper's state in an upgrade, and OldestHandover the oldest number that this
// code reads. A change of the fields needs a new number.
const (
	Handover       = 1
	OldestHandover = 1
)

// NestVersion is the version of the protocol between keeper and nest. A nest keeps
// running the old program when the keeper is upgraded.
const NestVersion = 1

// Kind is the kind of a frame.
type Kind uint8

// The agent's requests to the keeper. Each is answered by OK or Fail with the same id, except
// KindExits, with any number of ExitEvents as answers, and KindCopies, with any number of KindCopy
// and KindCopyDropped.
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
	KindLaunchPlan // KindLaunch with the plan in a sealed memory file
	KindAdvance    // lets a parked child continue to its next parking place
	KindTask       // KindRun for a Task; a plan, if any, comes in a sealed memory file
	KindNamespaces // makes namespaces; the answer brings a descriptor of each
	// KindLaunchGiven is KindLaunchPlan with descriptors for the program after the plan's file.
	KindLaunchGiven
	KindHold      // holds the descriptors that come with it under a name
	KindHeld      // asks for them; the answer brings further ones of the same files
	KindDropHeld  // closes them
	KindHeldNames // asks for all names
	KindCopies    // asks for copies of all items, now and whenever one changes
)

// The keeper's answers.
const (
	KindOK Kind = iota + 64
	KindFail
	KindExitEvent
	KindNestLost    // not an answer: the keeper has lost its nest and could not start another one
	KindCopy        // an item, with those of its descriptors that the client does not have yet
	KindCopyDropped // a removed item; with an empty key: all items have been sent once
)

// The messages between keeper and nest.
const (
	KindNestHello   Kind = iota + 128 // nest → keeper: the first frame
	KindNestItem                      // nest → keeper: an item that it holds
	KindNestReady                     // nest → keeper: all items are sent
	KindNestPut                       // keeper → nest: hold this item in place of the one with the same key
	KindNestDrop                      // keeper → nest: drop the item
	KindNestAsk                       // keeper → nest: has this child of yours ended?
	KindNestEnd                       // nest → keeper: how the child ended
	KindNestReap                      // keeper → nest: the child's exit is recorded
	KindNestBinary                    // keeper → nest: the program to start next time
	KindNestQuit                      // keeper → nest: both processes end
	KindNestServing                   // keeper → nest: the keeper has taken everything over
	// nest → keeper: the descriptors of this item could not be received; with an empty key: of any. The
	// keeper sends it again. A keeper or a nest of an earlier release does not know this kind.
	KindNestLacks
)

// HeaderLen is the length of a frame's header: kind, flags, two zero bytes, and the id
// that an answer shares with its request.
const HeaderLen = 12

// FlagMemfd says that the body is in a memory file, which is the frame's first
// descriptor.
const FlagMemfd = 1

// SocketKey is the key of the item that holds the listening socket. The keys of
// processes are paths with a slash.
const SocketKey = "socket"

// ResumePrefix starts the keys of the items of a keeper's clients, while a keeper without a nest
// becomes the next nest and starts the next keeper.
const ResumePrefix = "resume:"

// HeldPrefix starts the keys of items held for agents. No process's key has a colon.
const HeldPrefix = "held:"

// MaxInline is the longest body that fits into the frame itself. MaxBody is the
// longest that is accepted at all.
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

// ParseHeader splits a frame into header and inline body. It reports false if b is not
// a frame.
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
