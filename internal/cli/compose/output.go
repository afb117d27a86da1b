package compose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// output shows the lines of containers, each behind the name of its container.
type output struct {
	ctx     context.Context
	u       *upper
	since   *timestamppb.Timestamp
	width   int
	aborted chan struct{} // closed when --abort-on-container-exit ends everything

	wg     sync.WaitGroup
	mu     sync.Mutex      // guards status, ending, shown and the order of lines
	status int             // of up
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

// follow shows the output of a container until it has ended.
func (o *output) follow(c *longshorev1.Container) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shown[c.GetId()] {
		return
	}
	o.shown[c.GetId()] = true
	o.wg.Go(func() { o.show(c) })
}

// show shows the output of a container, and of each run that its restart policy starts, then how it has ended.
func (o *output) show(c *longshorev1.Container) {
	since := o.since
	for {
		last, err := o.lines(c, since)
		if status.Code(err) == codes.FailedPrecondition { // it has no log
			_, err = o.u.c.Containers.Wait(o.ctx, &longshorev1.WaitRequest{Name: c.GetId()})
		}
		if o.ctx.Err() != nil {
			return
		}
		if err != nil && status.Code(err) != codes.NotFound {
			o.u.warn("logs of %s: %s", c.GetName(), o.u.a.Explain(err))
			return
		}
		if !last.IsZero() {
			since = timestamppb.New(last.Add(1)) // not that line again
		}
		now, err := o.settled(c)
		if err != nil || now == nil {
			return // up has ended, or the container was removed
		}
		if !running(now) {
			o.ended(c, int(now.GetAutopsy().GetStatus()))
			return
		}
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
func (o *output) ended(c *longshorev1.Container, code int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.u.a.Stderr, "%s ended with the exit status %d\n", o.label(c.GetName()), code)
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
