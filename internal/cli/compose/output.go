package compose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
)

// output shows the lines of containers, each behind the name of its container.
type output struct {
	ctx     context.Context
	u       *upper
	since   *timestamppb.Timestamp
	width   int
	aborted chan struct{} // closed when --abort-on-container-exit ends everything

	wg     sync.WaitGroup
	mu     sync.Mutex      // guards status, away, ending, shown and the order of lines
	status int             // of up
	away   bool            // the agent has gone, and the user knows it
	ending bool            // aborted is closed
	shown  map[string]bool // IDs of containers
}

// newOutput returns an output that shows lines from now on.
func newOutput(ctx context.Context, u *upper) *output {
	o := &output{ctx: ctx, u: u, since: timestamppb.Now(), aborted: make(chan struct{}), shown: map[string]bool{}}
	for _, s := range u.p.Services {
		o.width = max(o.width, len(o.label(nameOf(u.name, s, max(s.Scale, 1)))))
	}
	return o
}

// label returns the name of a container without that of the project.
func (o *output) label(name string) string {
	return base.Printable(strings.TrimPrefix(name, o.u.name+"-"))
}

// follow shows the output of a container until it has ended, or only waits for the end if its service is quiet.
func (o *output) follow(c *longshorev1.Container, s composefile.Service) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shown[c.GetId()] {
		return
	}
	o.shown[c.GetId()] = true
	o.wg.Go(func() { o.show(c, s.Quiet) })
}

// show shows the output of a container, and of each run that its restart policy starts, then how it has ended. It continues
// with the next agent if this one ends.
func (o *output) show(c *longshorev1.Container, quiet bool) {
	since := o.since
	for {
		last, err := o.run(c, since, quiet)
		if !last.IsZero() {
			since = timestamppb.New(last.Add(1)) // not that line again
		}
		var now *longshorev1.Container
		if err == nil || status.Code(err) == codes.NotFound {
			now, err = o.settled(c)
		}
		switch {
		case gone(o.ctx, err):
			if err := o.reconnect(); err != nil {
				return // up has ended
			}
		case o.ctx.Err() != nil:
			return
		case err != nil:
			o.u.warn("logs of %s: %s", c.GetName(), o.u.a.Explain(err))
			o.failed()
			return
		case now == nil:
			return // the container was removed
		case !running(now):
			o.ended(c, int(now.GetAutopsy().GetStatus()), quiet)
			return
		}
	}
}

// run shows the output of one run from a time on, and returns the time of the last line. If nothing is to be shown, it waits for
// the end.
func (o *output) run(c *longshorev1.Container, since *timestamppb.Timestamp, quiet bool) (last time.Time, err error) {
	if !quiet {
		last, err = o.lines(c, since)
	}
	if quiet || status.Code(err) == codes.FailedPrecondition { // it has no log
		_, err = o.u.c.Containers.Wait(o.ctx, &longshorev1.WaitRequest{Name: c.GetId()})
	}
	return last, err
}

// reconnect waits for the next agent. It fails when up ends before.
func (o *output) reconnect() error {
	if o.setAway(true) {
		o.u.warn("the agent has gone; waiting for the next one")
	}
	if _, err := o.u.c.Node.Version(o.ctx, &longshorev1.VersionRequest{}, grpc.WaitForReady(true)); err != nil && !gone(o.ctx, err) {
		return err
	}
	o.setAway(false)
	return nil
}

// setAway stores whether the agent has gone, and reports whether that is new.
func (o *output) setAway(away bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed := o.away != away
	o.away = away
	return changed
}

// failed makes up fail unless it has the status of a container.
func (o *output) failed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.status == 0 {
		o.status = 1
	}
}

// lines shows the output of one run from a time on. It returns the time of the last line.
func (o *output) lines(c *longshorev1.Container, since *timestamppb.Timestamp) (last time.Time, err error) {
	open := map[string][]byte{}
	stream, err := o.u.c.Containers.Logs(o.ctx, &longshorev1.LogsRequest{Name: c.GetId(), Follow: true, Since: since})
	if err != nil {
		return last, err
	}
	err = base.Receive(stream.Recv, func(m *longshorev1.LogsResponse) error {
		name := m.GetStream()
		last = m.GetAt().AsTime()
		open[name] = append(open[name], m.GetData()...)
		if !m.GetPartial() || len(open[name]) > maxLine {
			o.line(c, name, open[name])
			open[name] = open[name][:0]
		}
		return nil
	})
	return last, err
}

// settled waits while the restart policy of a container is about to start it. It returns nil for one that was removed.
func (o *output) settled(c *longshorev1.Container) (now *longshorev1.Container, err error) {
	err = o.u.watch(o.ctx, func() (bool, error) {
		list, err := o.u.containers(o.ctx)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(list, func(x *longshorev1.Container) bool { return x.GetId() == c.GetId() })
		if now = nil; i >= 0 {
			now = list[i]
		}
		return now.GetState() != restarting, nil
	})
	return now, err
}

// ended reports the end of a container, and ends all others if the user wants that.
func (o *output) ended(c *longshorev1.Container, code int, quiet bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !quiet {
		_, _ = fmt.Fprintf(o.u.a.Stderr, "%s ended with the exit status %d\n", o.label(c.GetName()), code)
	}
	if !o.u.f.abort {
		return
	}
	if serviceOf(c) == o.u.f.exitFrom || o.u.f.exitFrom == "" && !o.ending {
		o.status = code
	}
	if !o.ending {
		o.ending = true
		close(o.aborted)
	}
}

// maxLine bounds the stored part of an incomplete line, in bytes.
const maxLine = 1 << 20

// line writes one line.
func (o *output) line(c *longshorev1.Container, stream string, text []byte) {
	w := o.u.a.Stdout
	if stream == "stderr" {
		w = o.u.a.Stderr
	}
	prefix := ""
	if !o.u.f.noLogPrefix {
		prefix = fmt.Sprintf("%-*s | ", o.width, o.label(c.GetName()))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = w.Write(slices.Concat([]byte(prefix), text, []byte("\n"))) // up ends with the containers, not with its reader
}

// wait waits until all containers have ended, and returns the exit status of up.
func (o *output) wait() int {
	o.wg.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.status
}
