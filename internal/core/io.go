package core

import "io"

// StdinMode says what a process finds at descriptor 0.
type StdinMode string

// The zero StdinMode is StdinClosed: /dev/null.
const (
	StdinClosed StdinMode = ""
	StdinOpen   StdinMode = "open" // a pipe that stays open until CloseStdin
	StdinOnce   StdinMode = "once" // closed after the first attached client has gone
)

// IO is a process's standard streams.
type IO struct {
	TTY   bool      `json:"tty,omitempty"`
	Size  Size      `json:"size"`
	Stdin StdinMode `json:"stdin,omitempty"`
	Sinks []Sink    `json:"sinks,omitempty"`
	// Hold keeps output in the pipe until an exclusive stream reads it, so
	// that nothing is lost and a full pipe blocks the process. It excludes
	// Sinks.
	Hold bool `json:"hold,omitempty"`
}

// Size is a terminal's, in characters. Zero leaves it as it is.
type Size struct {
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
}

// Format is how a sink writes.
type Format string

// The formats a sink knows.
const (
	FormatRaw Format = "raw" // bytes as they come, to a file or a FIFO
	FormatCRI Format = "cri" // "TIME stream P|F text\n", as kubelet's log reader wants it
)

// Sink is where the keeper writes a process's output.
type Sink struct {
	Format Format `json:"format"`
	Stdout bool   `json:"stdout,omitempty"`
	Stderr bool   `json:"stderr,omitempty"`
	Path   string `json:"path"` // absolute; created 0640; a FIFO is opened when its reader comes
	// Below is a directory above Path that is trusted: what is between is resolved
	// through no link whenever a file is opened, made or renamed. Without it the
	// directory of Path is trusted. The last component is never a link.
	Below string `json:"below,omitempty"`
	// MaxBytes starts a new file when the next write would pass it; 0 never.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// MaxFiles is how many files stay, the current one included; 0 is 1.
	// Older ones are Path.1 (the newest of them), Path.2, …
	MaxFiles int `json:"max_files,omitempty"`
	// Numbered sinks have a Path that ends in .N: a new file is the next number,
	// and the highest that is there is the current one. They are created 0644.
	Numbered bool `json:"numbered,omitempty"`
}

// StreamOptions says which ends of a live connection are wanted.
type StreamOptions struct {
	Stdin, Stdout, Stderr bool
	// Exclusive reads the held pipes themselves: lossless, with back-pressure,
	// one stream at a time, only for a process with IO.Hold. Otherwise the
	// stream gets what is written from now on, and loses what it is too slow
	// to read.
	Exclusive bool
}

// Streams is a live connection to a process's standard streams. Reads end with
// io.EOF when the process has ended and all of its output was read.
type Streams struct {
	Stdin          io.WriteCloser // nil when not asked for; Close ends the process's input where the StdinMode lets it
	Stdout, Stderr io.Reader      // nil when not asked for; Stderr is nil with a TTY
	Close          func() error
}
