// Package driver sends the output of containers to log services: it reads the options of a log driver, as docker names
// them, makes the service's messages and delivers them.
//
// It knows nothing about the files of logs and the life of containers; package ship does. Start at Parse.
package driver

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Message is one line of output, or a part of a long one.
type Message struct {
	At     time.Time
	Stderr bool
	// Part is set for a part of a long line.
	Part *Part
	Text []byte
}

// Part is the place of a message in a long line.
type Part struct {
	ID      string // of the line
	Ordinal int    // of the part, from 1
	Last    bool
}

// Source is the container of the messages.
type Source struct {
	ID         string
	Name       string
	Image      string
	ImageID    string
	Command    string
	Labels     map[string]string
	Attributes map[string]string // that each message carries
	Hostname   string
}

// Sender delivers messages to one service. It is used by one goroutine.
type Sender interface {
	// Send returns nil when the service has accepted all of the messages, as far as its protocol says so. After an error
	// any of them may have arrived, and the Sender connects again with the next call.
	Send(ctx context.Context, list []Message) error
	Close() error
}

// Driver is a driver with its options.
type Driver struct {
	Name    string
	tag     tag
	open    func(Source, string) (Sender, error)
	files   []*tlsFiles
	sockets []string // paths
	remote  bool     // its service has an address of the network
}

// CheckFiles reads the files of the options. A sender reads them for each connection.
func (d *Driver) CheckFiles() error {
	for _, f := range d.files {
		if _, err := f.config("host:0"); err != nil {
			return invalid.Plainf("log option syslog-tls: %w", err)
		}
	}
	return nil
}

// Sender returns a sender for the output of a container. It does not connect yet.
func (d *Driver) Sender(s Source) (Sender, error) { return d.open(s, d.tag.expand(s)) }

// Local reports whether a driver is one without a service: the output is in files of the node, or nowhere.
func Local(name string) bool {
	return name == "" || name == "json-file" || name == "local" || name == "none"
}

// Known reports whether the node has a driver, or none is needed.
func Known(name string) bool { return Local(name) || parsers()[name] != nil }

// Supported names the drivers in texts for users.
const (
	Supported = "json-file, local, none, " + Services
	Services  = "journald, syslog, fluentd"
)

// parser reads a driver's options.
type parser func(o *options) (func(Source, string) (Sender, error), error)

func parsers() map[string]parser {
	return map[string]parser{"syslog": parseSyslog, "fluentd": parseFluentd, "journald": parseJournald}
}

// Parse returns the driver of a name with its options. InvalidArgument.
func Parse(name string, opts map[string]string) (*Driver, error) {
	parse, ok := parsers()[name]
	if !ok {
		return nil, invalid.Plainf("log driver %q is not supported: use one of %s", name, Supported)
	}
	o := &options{driver: name, all: maps.Clone(opts), used: map[string]bool{}}
	for _, common := range []string{"mode", "max-buffer-size", "labels", "env", "cache-max-size", "cache-max-file", "cache-disabled", "cache-compress"} {
		o.get(common) // mode, labels and env have their meaning elsewhere; a program never waits for its log
	}
	if mode := opts["mode"]; mode != "" && mode != "blocking" && mode != "non-blocking" {
		return nil, invalid.Plainf("log option mode %q is none of blocking, non-blocking", mode)
	}
	for _, name := range []string{"labels-regex", "env-regex"} {
		if _, err := regexp.Compile(o.get(name)); err != nil {
			return nil, invalid.Plainf("log option %s: %w", name, err)
		}
	}
	if _, _, err := Size(opts); err != nil {
		return nil, err
	}
	if v := opts["max-buffer-size"]; v != "" {
		if _, err := ocispec.Bytes(v); err != nil {
			return nil, invalid.Plainf("log option max-buffer-size %q: %w", v, err)
		}
	}
	d := &Driver{Name: name}
	var err error
	if d.tag, err = parseTag(o.or("tag", "{{.ID}}")); err != nil {
		return nil, err
	}
	if d.open, err = parse(o); err != nil {
		return nil, err
	}
	d.files, d.sockets, d.remote = o.files, o.sockets, o.remote
	return d, o.unknown()
}

// options are the options of a driver; get notes the known ones.
type options struct {
	driver  string
	all     map[string]string
	used    map[string]bool
	files   []*tlsFiles // of the node
	sockets []string
	remote  bool
}

func (o *options) get(name string) string {
	o.used[name] = true
	return o.all[name]
}

func (o *options) or(name, value string) string {
	if v := o.get(name); v != "" {
		return v
	}
	return value
}

// flag reads a boolean option.
func (o *options) flag(name string) (bool, error) {
	switch v := o.get(name); v {
	case "", "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	default:
		return false, invalid.Plainf("log option %s %q is neither true nor false", name, v)
	}
}

func (o *options) unknown() error {
	for _, name := range slices.Sorted(maps.Keys(o.all)) {
		if !o.used[name] {
			return invalid.Plainf("unknown log opt '%s' for %s log driver: it has %s", name, o.driver, strings.Join(slices.Sorted(maps.Keys(o.used)), ", "))
		}
	}
	return nil
}

// MinFiles is the least number of files of a log with a service. With one file, each rotation removes unread lines.
const MinFiles = 2

// Size returns the limits of the node's own log that the options cache-max-size and cache-max-file set; 0 is the default.
func Size(opts map[string]string) (bytes int64, files int32, err error) {
	if v := opts["cache-max-size"]; v != "" {
		if bytes, err = ocispec.Bytes(v); err != nil {
			return 0, 0, invalid.Plainf("log option cache-max-size %q: %w", v, err)
		}
	}
	if v := opts["cache-max-file"]; v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < MinFiles || n > 100 {
			return 0, 0, invalid.Plainf("log option cache-max-file %q is no number from 2 to 100", v)
		}
		files = int32(n)
	}
	return bytes, files, nil
}

// maxAttributes bounds the attributes of a container, in bytes, because each message carries them.
const maxAttributes = 8 << 10

// Record returns the driver in the form of a container's record: it checks name and options, and selects attributes of labels and
// variables (NAME=value).
func Record(name string, opts, labels map[string]string, env []string) (*core.LogDriver, error) {
	parsed, err := Parse(name, opts)
	if err == nil {
		err = parsed.CheckFiles()
	}
	if err != nil {
		return nil, err
	}
	return record(name, opts, labels, env)
}

func record(name string, opts, labels map[string]string, env []string) (*core.LogDriver, error) {
	vars := map[string]string{}
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok {
			vars[name] = value
		}
	}
	d := &core.LogDriver{Name: name, Options: opts, Attributes: map[string]string{}}
	choose(d.Attributes, labels, opts["labels"], opts["labels-regex"])
	choose(d.Attributes, vars, opts["env"], opts["env-regex"])
	size := 0
	for k, v := range d.Attributes {
		size += len(k) + len(v)
	}
	if size > maxAttributes {
		return nil, invalid.Plainf("the log options labels and env add more than %d bytes to each message", maxAttributes)
	}
	return d, nil
}

// choose copies the values of a list of keys, and those with a key that matches an expression.
func choose(to, from map[string]string, list, expression string) {
	for key := range strings.SplitSeq(list, ",") {
		if v, ok := from[key]; ok {
			to[key] = v
		}
	}
	match, err := regexp.Compile(expression)
	if expression == "" || err != nil { // Parse has refused it
		return
	}
	for k, v := range from {
		if match.MatchString(k) {
			to[k] = v
		}
	}
}

// SourceOf returns the source of a container's messages.
func SourceOf(c *core.Container) Source {
	d := c.Config.LogDriver
	host, _ := os.Hostname()
	return Source{
		ID: string(c.ID), Name: c.Name(), Image: d.Image, ImageID: c.Image.String(), Command: d.Command, Labels: c.Labels, Attributes: d.Attributes, Hostname: host,
	}
}
