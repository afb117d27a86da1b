package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/proctree"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// planned is a request with a plan, which travels in a sealed memory file, and with the descriptors
// for the program.
type planned struct {
	wire.Message
	plan  []byte
	given []*os.File
	held  []int // descriptors for the keeper to hold, which the caller keeps open meanwhile
}

// sent are a request's descriptors besides its body.
type sent struct {
	plan  []byte
	given []*os.File
	held  []int
}

// forVersion turns a request into the form that a keeper of the agreed version understands:
// its kind, its body, and the files that are sent with it.
func (l *link) forVersion(kind wire.Kind, m wire.Message) (wire.Kind, wire.Message, sent, error) {
	r, ok := m.(*planned)
	switch {
	case l.version < wire.VersionHold && (kind == wire.KindHold || kind == wire.KindHeld || kind == wire.KindDropHeld || kind == wire.KindHeldNames):
		return kind, nil, sent{}, l.tooOld()
	case l.version >= wire.VersionGiven && ok:
		return kind, r.Message, sent{r.plan, r.given, r.held}, nil
	case kind == wire.KindLaunchGiven:
		return kind, nil, sent{}, fmt.Errorf("keeper: it speaks protocol version %d and cannot give descriptors to a program; upgrade it: %w", l.version, errdefs.ErrFailedPrecondition)
	case l.version >= wire.VersionTask && ok && r.plan != nil:
		blob, err := plan.ToVersion2(r.plan)
		if err != nil {
			return kind, nil, sent{}, fmt.Errorf("keeper: %w; upgrade it: %w", err, errdefs.ErrFailedPrecondition)
		}
		return kind, r.Message, sent{plan: blob}, nil
	case l.version >= wire.VersionTask && ok:
		return kind, r.Message, sent{}, nil
	case l.version >= wire.VersionTask:
		return kind, m, sent{}, nil
	}
	switch kind {
	case wire.KindLaunchPlan:
		launch, ok := r.Message.(*wire.Launch)
		if !ok {
			break
		}
		with := *launch
		var err error
		if with.Plan, err = plan.ToVersion1(r.plan); err != nil {
			return kind, nil, sent{}, fmt.Errorf("keeper: %w; upgrade it: %w", err, errdefs.ErrFailedPrecondition)
		}
		return wire.KindLaunch, &with, sent{}, nil
	case wire.KindTask, wire.KindAdvance, wire.KindNamespaces:
	default:
		return kind, m, sent{}, nil
	}
	return kind, nil, sent{}, l.tooOld()
}

func (l *link) tooOld() error {
	return fmt.Errorf("keeper: it speaks protocol version %d and does not know this request; upgrade it: %w", l.version, errdefs.ErrFailedPrecondition)
}

// write sends a request. A body that is too long for the frame is sent in a memory
// file; a plan always is. The given descriptors come last.
func write(conn *link, h wire.Header, m wire.Message, with sent) error {
	var body []byte
	if m != nil {
		body = wire.Marshal(nil, m)
	}
	var files []int
	defer func() { kernel.CloseAll(files) }()
	file := func(b []byte) error {
		fd, err := kernel.Memfd(b)
		if err == nil {
			files = append(files, fd)
		}
		return err
	}
	if len(body) > wire.MaxInline {
		if err := file(body); err != nil {
			return err
		}
		body = nil
		h.Flags |= wire.FlagMemfd
	}
	if with.plan != nil {
		if err := file(with.plan); err != nil {
			return err
		}
	}
	all := append(files, with.held...) //nolint:gocritic // files alone are closed
	for _, f := range with.given {
		all = append(all, int(f.Fd()))
	}
	defer runtime.KeepAlive(with.given)
	var oob []byte
	if len(all) > 0 {
		oob = syscall.UnixRights(all...)
	}
	_, _, err := conn.WriteMsgUnix(append(h.Append(nil), body...), oob, nil)
	return err
}

// cancelled returns the error of a request whose context has ended. For a launch, the keeper
// answers at once that it killed the child, with the operation; that answer becomes part of the
// error. Other answers are discarded when they come.
func (p *pair) cancelled(ctx context.Context, call *pending, kind wire.Kind) error {
	if kind != wire.KindLaunch && kind != wire.KindLaunchPlan && kind != wire.KindLaunchGiven && kind != wire.KindTask {
		go p.discardLate(context.WithoutCancel(ctx), call, kind)
		return ctx.Err()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-call.done:
		if r.kind == wire.KindFail && r.err == nil {
			r.fds.close()
			return errors.Join(ctx.Err(), decodeFail(r.body))
		}
		call.done <- r
	case <-timer.C:
	}
	go p.discardLate(context.WithoutCancel(ctx), call, kind)
	return ctx.Err()
}

// discardLate receives the answer to a cancelled request, and releases its resources: descriptors,
// a stream, or a process that was launched nevertheless.
func (p *pair) discardLate(ctx context.Context, call *pending, kind wire.Kind) {
	r := <-call.done
	r.fds.close()
	var l wire.Launched
	if r.kind != wire.KindOK {
		return
	}
	switch kind {
	case wire.KindLaunch, wire.KindLaunchPlan, wire.KindLaunchGiven:
		if !wire.Unmarshal(r.body, &l) {
			return
		}
	case wire.KindStreams:
		if !wire.Unmarshal(r.body, &l.Opened) {
			return
		}
	}
	if call.launches != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := proctree.Kill(l.Pid, proctree.Session(l.Pid), proctree.All); err != nil {
			p.c.log.WarnContext(ctx, "cannot kill all processes of a cancelled launch; some may still run", "pid", l.Pid, "error", err)
		}
		_, _ = p.call(ctx, wire.KindSignal, &wire.SignalRequest{Ref: *call.launches, Signal: int(syscall.SIGKILL)}, nil)
	}
	if l.Opened.Stream != 0 {
		p.sendEnd(&wire.StreamEnd{Stream: l.Opened.Stream})
	}
}

// withoutKey removes the process's key from a keeper's error text. The caller knows
// the key, and the same failure should give the same text for every process. For a
// launch, a release and an advance only the cause is left.
func withoutKey(text string) string {
	op, rest, _ := strings.Cut(text, " ")
	key, cause, ok := strings.Cut(rest, ": ")
	if !ok || !strings.Contains(key, "/") || strings.ContainsAny(key, " \"") {
		return text
	}
	switch op {
	case "launch", "release", "advance":
		return cause
	case "forget", "signal", "streams":
		return op + ": " + cause
	}
	return text
}

// repeatable reports whether a request may be sent again when nobody knows whether it
// was carried out.
func repeatable(kind wire.Kind) bool {
	switch kind {
	case wire.KindLaunch, wire.KindLaunchPlan, wire.KindLaunchGiven, wire.KindRun, wire.KindTask, wire.KindAdvance, wire.KindSignal, wire.KindStreamEnd, wire.KindUpgrade:
		return false
	default:
		return true
	}
}
