package compose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

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

// show shows the output, then how the container has ended.
func (o *output) show(c *longshorev1.Container) {
	open := map[string][]byte{}
	stream, err := o.u.c.Containers.Logs(o.ctx, &longshorev1.LogsRequest{Name: c.GetId(), Follow: true, Since: o.since})
	if err == nil {
		err = base.Receive(stream.Recv, func(m *longshorev1.LogsResponse) error {
			name := m.GetStream()
			open[name] = append(open[name], m.GetData()...)
			if !m.GetPartial() || len(open[name]) > maxLine {
				o.line(c, name, open[name])
				open[name] = open[name][:0]
			}
			return nil
		})
	}
	if o.ctx.Err() != nil {
		return
	}
	if err != nil && !strings.Contains(err.Error(), "not stored") {
		o.u.warn("logs of %s: %s", c.GetName(), o.u.a.Explain(err))
	}
	resp, err := o.u.c.Containers.Wait(o.ctx, &longshorev1.WaitRequest{Name: c.GetId()})
	if err != nil {
		return // it was removed
	}
	status := int(resp.GetAutopsy().GetStatus())
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.u.a.Stderr, "%s ended with the exit status %d\n", o.label(c.GetName()), status)
	if !o.u.f.abort {
		return
	}
	if serviceOf(c) == o.u.f.exitFrom || o.u.f.exitFrom == "" && !o.ending {
		o.status = status
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
