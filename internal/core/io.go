package core

import "io"

// StdinMode selects the file at a process's descriptor 0.
type StdinMode string

// The zero StdinMode is StdinClosed: /dev/null.
const (
	StdinClosed StdinMode = ""
	StdinOpen   StdinMode = "open" // a pipe that stays open until CloseStdin
	StdinOnce   StdinMode = "once" // closed after the first attached client has gone
)

// IO has the connections of a process's standard streams.
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

// LogDriverLabel and LogOptionsLabel are labels of a container with a log driver and its options, a line each as NAME=VALUE.
const (
	LogDriverLabel  = "longshore.log-driver"
	LogOptionsLabel = "longshore.log-options"
)

// LogDriver names a log service that gets a container's output, in addition to the sinks.
type LogDriver struct {
	Name    string            `json:"name"`
	Options map[string]string `json:"options,omitempty"` // as docker names them
	// Image and Command are for templates of a tag: the image's name as the user has it, and the program with its arguments.
	Image   string `json:"image,omitempty"`
	Command string `json:"command,omitempty"`
	// Attributes are the labels and variables that the options select.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Foreign says that the author of a pod, job or service chose a service with an address of the network. An egress list refuses it.
	Foreign bool `json:"foreign,omitempty"`
}

// LogDrivers decides about the log drivers of containers: see ContainerConfig.LogDriver.
type LogDrivers interface {
	// Complete gives a new container its log driver, which is its own or the node's, and a log for the driver if the container has
	// none. A driver without a service, such as json-file, becomes none. InvalidArgument.
	Complete(id ID, cfg *ContainerConfig) error
}

// Size is the size of a terminal in characters. Zero leaves it unchanged.
type Size struct {
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
}

// Format is the format of a sink.
type Format string

// The formats of sinks.
const (
	FormatRaw Format = "raw" // bytes as they are read, to a file or a FIFO
	FormatCRI Format = "cri" // "TIME stream P|F text\n", the format that kubelet's log reader expects

	FormatCRIPlain Format = "cri-plain" // "TIME stream text\n", as the CRI of 2017 had it; it has no MaxBytes
)

// Records reports whether a sink of this format has records, with a time and the name of a stream.
func (f Format) Records() bool { return f == FormatCRI || f == FormatCRIPlain }

// Sink is where the keeper writes a process's output.
type Sink struct {
	Format Format `json:"format"`
	Stdout bool   `json:"stdout,omitempty"`
	Stderr bool   `json:"stderr,omitempty"`
	Path   string `json:"path"` // absolute; created with mode 0640; a FIFO is opened when it has a reader
	// Below is a trusted directory above Path. The path between the two is resolved whenever a
	// file is opened, created or renamed, and no link in it is followed. When it is empty, the
	// directory of Path is trusted. The last component is never followed if it is a link.
	Below string `json:"below,omitempty"`
	// MaxBytes starts a new file when the next write would exceed it; 0 is no limit.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// MaxFiles is how many files are kept, the current one included; 0 means 1. Older ones are
	// Path.1 (the newest of them), Path.2, …
	MaxFiles int `json:"max_files,omitempty"`
	// Numbered sinks have a Path that ends in .N. A new file gets the next number; the existing
	// file with the highest number is the current one. They are created with mode 0644.
	Numbered bool `json:"numbered,omitempty"`
}

// StreamOptions says which ends of a live connection are opened.
type StreamOptions struct {
	Stdin, Stdout, Stderr bool
	// Exclusive reads the held pipes themselves: lossless and with back-pressure, but one stream at
	// a time, and only for a process with IO.Hold. Otherwise the stream starts with the present
	// output, and loses output if it reads too slowly.
	Exclusive bool
}

// Streams is a live connection to a process's standard streams. Reads return io.EOF when the
// process has ended and all of its output has been read.
type Streams struct {
	Stdin          io.WriteCloser // nil when not asked for; Close ends the process's input if the StdinMode allows that
	Stdout, Stderr io.Reader      // nil when not asked for; Stderr is nil with a TTY
	Close          func() error
}
