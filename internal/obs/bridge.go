package obs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/grpclog"
)

// BridgeLogrus sends the lines of logrus' standard logger to log. It changes that global logger, so
// it is called once, at start.
func BridgeLogrus(log *slog.Logger) {
	std := logrus.StandardLogger()
	std.SetOutput(io.Discard)
	std.SetLevel(logrus.DebugLevel)
	std.ReplaceHooks(logrus.LevelHooks{})
	std.AddHook(logrusHook{log})
}

type logrusHook struct{ log *slog.Logger }

func (h logrusHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h logrusHook) Fire(e *logrus.Entry) error {
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := logrusLevel(e.Level)
	if !h.log.Enabled(ctx, level) {
		return nil
	}
	attrs := make([]slog.Attr, 0, len(e.Data)+1)
	attrs = append(attrs, slog.String("text", e.Message))
	for k, v := range e.Data {
		if err, ok := v.(error); ok {
			v = err.Error()
		}
		attrs = append(attrs, slog.Any(k, v))
	}
	h.log.LogAttrs(ctx, level, "library message", attrs...)
	return nil
}

// logrusLevel is one level lower than the library's: an error of a library may be harmless to us,
// and we log our own errors.
func logrusLevel(l logrus.Level) slog.Level {
	switch l {
	case logrus.PanicLevel, logrus.FatalLevel:
		return slog.LevelError
	case logrus.ErrorLevel, logrus.WarnLevel:
		return slog.LevelWarn
	case logrus.InfoLevel, logrus.DebugLevel, logrus.TraceLevel:
		return slog.LevelDebug
	default:
		return slog.LevelDebug
	}
}

// BridgeGRPC sends the gRPC library's lines to log. It changes that library's global logger, so it
// is called once, before any server or client is made.
func BridgeGRPC(log *slog.Logger) { grpclog.SetLoggerV2(grpcLogger{log}) }

// grpcLogger is gRPC's LoggerV2. gRPC logs a lost connection as an error, which is usual here, so
// every level is lowered by one.
type grpcLogger struct{ log *slog.Logger }

func (g grpcLogger) emit(level slog.Level, text string) {
	g.log.LogAttrs(context.Background(), level, "grpc message", slog.String("text", strings.TrimSuffix(text, "\n")))
}

func (g grpcLogger) Info(args ...any) { g.emit(slog.LevelDebug-1, fmt.Sprint(args...)) }

func (g grpcLogger) Infoln(args ...any) { g.emit(slog.LevelDebug-1, fmt.Sprintln(args...)) }

func (g grpcLogger) Infof(f string, args ...any) { g.emit(slog.LevelDebug-1, fmt.Sprintf(f, args...)) }

func (g grpcLogger) Warning(args ...any) { g.emit(slog.LevelDebug, fmt.Sprint(args...)) }

func (g grpcLogger) Warningln(args ...any) { g.emit(slog.LevelDebug, fmt.Sprintln(args...)) }

func (g grpcLogger) Warningf(f string, args ...any) { g.emit(slog.LevelDebug, fmt.Sprintf(f, args...)) }

func (g grpcLogger) Error(args ...any) { g.emit(slog.LevelWarn, fmt.Sprint(args...)) }

func (g grpcLogger) Errorln(args ...any) { g.emit(slog.LevelWarn, fmt.Sprintln(args...)) }

func (g grpcLogger) Errorf(f string, args ...any)      { g.emit(slog.LevelWarn, fmt.Sprintf(f, args...)) }
func (g grpcLogger) Fatal(args ...any)                 { g.fatal(fmt.Sprint(args...)) }
func (g grpcLogger) Fatalln(args ...any)               { g.fatal(fmt.Sprintln(args...)) }
func (g grpcLogger) Fatalf(format string, args ...any) { g.fatal(fmt.Sprintf(format, args...)) }
func (g grpcLogger) V(level int) bool                  { return level <= 0 }

// fatal ends the process: LoggerV2 requires that Fatal does not return.
func (g grpcLogger) fatal(text string) {
	g.emit(slog.LevelError, text)
	os.Exit(1)
}
