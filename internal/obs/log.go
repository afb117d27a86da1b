package obs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// LogConfig has the level and the form of the log.
type LogConfig struct {
	Level  string // debug, info, warn or error; "" is info
	Format string // json, text, or auto: text on a terminal and JSON elsewhere; "" is auto
	// Terminal says whether the writer is a terminal.
	Terminal bool
}

// ParseLevel parses a level's name; "" is info. InvalidArgument for others.
func ParseLevel(s string) (slog.Level, error) {
	switch strings.ToLower(s) {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q is none of debug, info, warn, error: %w", s, errdefs.ErrInvalidArgument)
}

// NewLogger makes the agent's logger. The level can be changed at any time.
func NewLogger(w io.Writer, cfg LogConfig) (*slog.Logger, *slog.LevelVar, error) {
	l, err := ParseLevel(cfg.Level)
	if err != nil {
		return nil, nil, err
	}
	level := new(slog.LevelVar)
	level.Set(l)
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch cfg.Format {
	case "json":
		h = slog.NewJSONHandler(w, opts)
	case "text":
		h = slog.NewTextHandler(w, opts)
	case "", "auto":
		h = slog.NewJSONHandler(w, opts)
		if cfg.Terminal {
			h = slog.NewTextHandler(w, opts)
		}
	default:
		return nil, nil, fmt.Errorf("log format %q is none of json, text, auto: %w", cfg.Format, errdefs.ErrInvalidArgument)
	}
	return slog.New(contextHandler{h}), level, nil
}

type attrsKey struct{}

// WithAttrs returns a context that adds attrs to log lines, after those of ctx.
func WithAttrs(ctx context.Context, attrs ...slog.Attr) context.Context {
	have, _ := ctx.Value(attrsKey{}).([]slog.Attr)
	return context.WithValue(ctx, attrsKey{}, append(slices.Clip(have), attrs...))
}

// contextHandler adds the attributes of WithAttrs.
type contextHandler struct{ slog.Handler }

func (h contextHandler) Handle(ctx context.Context, r slog.Record) error {
	if attrs, ok := ctx.Value(attrsKey{}).([]slog.Attr); ok {
		r.AddAttrs(attrs...)
	}
	return h.Handler.Handle(ctx, r)
}

func (h contextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return contextHandler{h.Handler.WithAttrs(attrs)}
}

func (h contextHandler) WithGroup(name string) slog.Handler {
	return contextHandler{h.Handler.WithGroup(name)}
}
