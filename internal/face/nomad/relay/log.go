package relay

import (
	"io"
	"log/slog"
	"strings"
)

// newHandler writes the form that Nomad reads from a plugin's standard error: a JSON object a line,
// with hclog's names.
func newHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey:
			return slog.String("@timestamp", a.Value.Time().Format("2006-01-02T15:04:05.000000Z07:00"))
		case slog.LevelKey:
			return slog.String("@level", strings.ToLower(a.Value.String()))
		case slog.MessageKey:
			a.Key = "@message"
		}
		return a
	}}).WithAttrs([]slog.Attr{slog.String("@module", "longshore")})
}
