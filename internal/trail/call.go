package trail

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/longshore/longshore/internal/caller"
)

// Of returns a record of the caller.
func Of(ctx context.Context) Record {
	c, _ := caller.From(ctx)
	return Record{Face: c.Face, Call: c.Call, Peer: c.Peer, Request: c.Request}
}

// Ended returns r with the outcome of its call.
func Ended(r Record, err error) Record {
	r.Outcome = OK
	if err != nil {
		r.Outcome, r.Error = Failed, err.Error()
	}
	return r
}

// Call writes a line of a call that no verb has written one of. It implements caller.Audit.
func (l *Log) Call(ctx context.Context, request any, err error) {
	if c, ok := caller.From(ctx); !ok || c.Noted() {
		return
	}
	r := Of(ctx)
	r.Name = Object(request)
	l.Write(Ended(r, err))
}

// Object returns the name of the object of a request, which is a text or a message. It may be "".
func Object(request any) string {
	if text, ok := request.(string); ok {
		return text
	}
	m, ok := request.(proto.Message)
	if !ok || m == nil {
		return ""
	}
	return object(m.ProtoReflect(), 0)
}

// object returns the first text among the fields with usual names of objects, and those of the messages in them.
func object(m protoreflect.Message, depth int) string {
	if !m.IsValid() || depth > 3 {
		return ""
	}
	fields := m.Descriptor().Fields()
	for _, name := range []protoreflect.Name{"name", "container", "container_id", "pod_sandbox_id", "sandbox", "id", "ref", "reference", "image", "network", "volume", "source", "registry", "path"} {
		f := fields.ByName(name)
		if f == nil || f.IsList() || f.IsMap() {
			continue
		}
		text := ""
		switch f.Kind() {
		case protoreflect.StringKind:
			text = m.Get(f).String()
		case protoreflect.MessageKind:
			text = object(m.Get(f).Message(), depth+1)
		}
		if text != "" {
			return text
		}
	}
	for i := range fields.Len() { // the first message of a stream wraps its request
		f := fields.Get(i)
		if f.Kind() != protoreflect.MessageKind || f.IsList() || f.IsMap() {
			continue
		}
		if text := object(m.Get(f).Message(), depth+1); text != "" {
			return text
		}
	}
	return ""
}

// Config is the section [audit].
type Config struct {
	Enabled bool `toml:"enabled"`
	// Bytes is the size of a file before the next one begins, Files the number of files that are kept.
	Bytes int64 `toml:"bytes"`
	Files int   `toml:"files"`
	// Journal also sends the lines to systemd's journal.
	Journal bool `toml:"journal"`
}

// DefaultConfig is a trail of at most 64 MiB.
func DefaultConfig() Config { return Config{Enabled: true, Bytes: 16 << 20, Files: 4} }

// Validate refuses a trail without room.
func (c Config) Validate() error {
	if c.Bytes < 64<<10 || c.Bytes > 1<<40 {
		return fmt.Errorf("audit.bytes %d: not from 65536 to 1 TiB: %w", c.Bytes, errdefs.ErrInvalidArgument)
	}
	if c.Files < 2 || c.Files > maxFiles {
		return fmt.Errorf("audit.files %d: not from 2 to %d: %w", c.Files, maxFiles, errdefs.ErrInvalidArgument)
	}
	return nil
}
