package ui

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

const (
	// feedInterval is the time between two rounds of stats and of the load of the machine.
	feedInterval = 2 * time.Second
	// settleTime is the delay between an event and the next list. Further events in that time need no list of their own.
	settleTime = 200 * time.Millisecond
	// retryTime is the time between two attempts to reach the agent.
	retryTime = time.Second
	// maxReaders bounds the open pages, maxQueue the messages that wait for one. A page that reads more slowly is cut off, and
	// begins again with all objects.
	maxReaders = 32
	maxQueue   = 128
	// maxHistory is the number of rounds of the load that a new page begins with: five minutes.
	maxHistory = 150
)

// feed is the live data. All pages share one watch of the control API's streams, which exists only while there are pages.
type feed struct {
	api api
	log *slog.Logger

	mu  sync.Mutex // guards cur
	cur *watch
}

// watch is one use of the control API's streams.
type watch struct {
	api   api
	log   *slog.Logger
	dirty chan struct{} // has room for one
	stop  context.CancelFunc

	mu      sync.Mutex // guards readers, history, pulling, down
	readers map[*reader]struct{}
	history []json.RawMessage // of the load, the newest last
	pulling json.RawMessage   // the pulls under way
	down    bool              // the agent does not answer

	sent map[string]uint64 // hashes of the objects as the readers have them, by ID; only list uses it
	seed maphash.Seed
}

// reader is a page.
type reader struct {
	out  chan []byte
	gone context.CancelFunc
	live bool // it has got all objects; guarded by the watch's mu
}

// join adds a page. It returns nil if there are too many.
func (f *feed) join(gone context.CancelFunc) (*watch, *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cur == nil {
		ctx, stop := context.WithCancel(context.Background())
		f.cur = &watch{
			api: f.api, log: f.log, dirty: make(chan struct{}, 1), stop: stop, readers: map[*reader]struct{}{}, sent: map[string]uint64{}, seed: maphash.MakeSeed(),
		}
		f.cur.run(ctx)
	}
	r := &reader{out: make(chan []byte, maxQueue), gone: gone}
	f.cur.mu.Lock()
	full := len(f.cur.readers) >= maxReaders
	if !full {
		f.cur.readers[r] = struct{}{}
	}
	f.cur.mu.Unlock()
	if full {
		return nil, nil
	}
	f.cur.changed()
	return f.cur, r
}

// leave removes a page. The last one ends the watch.
func (f *feed) leave(w *watch, r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.mu.Lock()
	delete(w.readers, r)
	last := len(w.readers) == 0
	w.mu.Unlock()
	if last && f.cur == w {
		w.stop()
		f.cur = nil
	}
}

// serveFeed sends the live data to a page until it leaves.
func (s *Server) serveFeed(w http.ResponseWriter, r *http.Request) error {
	ctx, gone := context.WithCancel(r.Context())
	defer gone()
	watch, reader := s.feed.join(gone)
	if reader == nil {
		return requestError{http.StatusServiceUnavailable, "too many pages are open: close one"}
	}
	defer s.feed.leave(watch, reader)
	out := newLines(w)
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-reader.out:
			if err := out.write(m); err != nil {
				return nil // the page has gone
			}
		}
	}
}

// changed makes the watch list the objects.
func (w *watch) changed() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// message encodes a message of the feed as a line.
func message(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return nil // its types can be encoded
	}
	return append(data, '\n')
}

// send sends a message to the pages that have all objects. Preconditions: mu is held.
func (w *watch) send(m []byte) {
	for r := range w.readers {
		if r.live {
			r.push(m)
		}
	}
}

// push queues a message, or cuts a slow page off.
func (r *reader) push(m []byte) {
	select {
	case r.out <- m:
	default:
		r.gone()
	}
}

// publish sends a message to the pages that have all objects.
func (w *watch) publish(v any) {
	m := message(v)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.send(m)
}

// run follows the streams until ctx ends.
func (w *watch) run(ctx context.Context) {
	for _, follow := range []func(context.Context) error{w.events, w.stats, w.load, w.pulls, w.lists} {
		go func() {
			for ctx.Err() == nil {
				err := follow(ctx)
				if ctx.Err() != nil {
					return
				}
				if err != nil && !errors.Is(err, io.EOF) {
					w.log.DebugContext(ctx, "a stream of the web page's data has ended; will retry", "error", err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(retryTime):
				}
			}
		}()
	}
}

// setDown records whether the agent answers, and reports a change to the pages.
func (w *watch) setDown(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down == down {
		return
	}
	w.down = down
	m := message(map[string]any{"k": "agent", "down": down})
	for r := range w.readers {
		r.push(m)
	}
}

// events follows the event log.
func (w *watch) events(ctx context.Context) error {
	stream, err := w.api.node.Events(ctx, &longshorev1.EventsRequest{Follow: true})
	if err != nil {
		return err
	}
	w.changed() // there may have been changes before the stream began
	for {
		m, err := stream.Recv()
		if err != nil {
			w.changed() // shows whether the agent answers
			return err
		}
		w.publish(map[string]any{"k": "event", "e": eventOf(m.GetEvent())})
		w.changed()
	}
}

// stats follows the stats of all containers that run.
func (w *watch) stats(ctx context.Context) error {
	stream, err := w.api.containers.Stats(ctx, &longshorev1.StatsRequest{Interval: durationpb.New(feedInterval)})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		rows := make([][]any, 0, len(m.GetContainers()))
		for _, c := range m.GetContainers() {
			rows = append(rows, row(c))
		}
		w.publish(map[string]any{"k": "stats", "c": rows})
	}
}

// load follows the load of the machine.
func (w *watch) load(ctx context.Context) error {
	stream, err := w.api.node.Load(ctx, &longshorev1.LoadRequest{Interval: durationpb.New(feedInterval)})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		data, err := plain.Marshal(m)
		if err != nil {
			return err
		}
		w.mu.Lock()
		if len(w.history) > 0 && m.CpuPercent == nil { // the first round after a break
			w.mu.Unlock()
			continue
		}
		if len(w.history) == maxHistory {
			w.history = slices.Delete(w.history, 0, 1)
		}
		w.history = append(w.history, data)
		w.send(message(map[string]any{"k": "load", "l": json.RawMessage(data)}))
		w.mu.Unlock()
	}
}

// pulls follows the pulls under way.
func (w *watch) pulls(ctx context.Context) error {
	stream, err := w.api.images.WatchPulls(ctx, &longshorev1.WatchPullsRequest{})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if status.Code(err) == codes.Unimplemented { // an older agent
			<-ctx.Done()
			return nil
		}
		if err != nil {
			return err
		}
		data, err := plain.Marshal(m)
		if err != nil {
			return err
		}
		w.mu.Lock()
		w.pulling = data
		w.send(message(map[string]any{"k": "pulls", "p": w.pulling}))
		w.mu.Unlock()
	}
}

// lists sends the objects that have changed, after each event, and all objects to new pages.
func (w *watch) lists(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.dirty:
		}
		if !w.awaited() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settleTime):
			}
		}
		select { // the list is newer than the events so far
		case <-w.dirty:
		default:
		}
		if err := w.list(ctx); err != nil {
			w.setDown(true)
			w.changed()
			return err
		}
		w.setDown(false)
	}
}

// awaited reports whether a page waits for its objects.
func (w *watch) awaited() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.readers {
		if !r.live {
			return true
		}
	}
	return false
}

// list reads all objects and sends the difference.
func (w *watch) list(ctx context.Context) error {
	sandboxes, err := w.api.containers.ListSandboxes(ctx, &longshorev1.ListSandboxesRequest{})
	if err != nil {
		return err
	}
	containers, err := w.api.containers.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		return err
	}
	labels := map[string]map[string]string{}
	var all []json.RawMessage
	changed, now := []json.RawMessage{}, map[string]uint64{}
	add := func(o object) {
		data, err := json.Marshal(o)
		if err != nil {
			return // its types can be encoded
		}
		sum := maphash.Bytes(w.seed, data)
		now[o.ID] = sum
		all = append(all, data)
		if before, ok := w.sent[o.ID]; !ok || before != sum {
			changed = append(changed, data)
		}
	}
	for _, sb := range sandboxes.GetSandboxes() {
		labels[sb.GetId()] = sb.GetLabels()
		add(sandboxOf(sb))
	}
	for _, c := range containers.GetContainers() {
		add(containerOf(c, labels[c.GetSandbox()]))
	}
	gone := []string{}
	for id := range maps.Keys(w.sent) {
		if _, ok := now[id]; !ok {
			gone = append(gone, id)
		}
	}
	w.sent = now
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(changed) > 0 || len(gone) > 0 {
		w.send(message(map[string]any{"k": "change", "set": changed, "gone": gone}))
	}
	var snapshot []byte
	for r := range w.readers {
		if r.live {
			continue
		}
		if snapshot == nil {
			snapshot = message(map[string]any{"k": "all", "set": all, "history": w.history, "pulling": w.pulling})
		}
		r.live = true
		r.push(snapshot)
	}
	return nil
}
