package hub_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// again is another connection of a node.
func again(h *hubtest.Hub, n *hubtest.Node) *hubtest.Node { return h.Dial(n.Credentials(), n.Identity) }

// TestAReaderThatNeverReads: the connection of a stream that outlives its session and does not read
// its messages is closed: nothing of it stays.
func TestAReaderThatNeverReads(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	hubtest.Commit(t, h,
		inventory.Put(inventory.Configs, "config-x", &swarmv1.Config{Id: "config-x", Spec: &swarmv1.ConfigSpec{Data: make([]byte, 900<<10)}}, store.Any),
		hubtest.Task("a", n.NodeID, swarmv1.TaskState_RUNNING, "config-x"),
	)
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	// With windows that are set, the client takes no more than them.
	conn, err := grpc.NewClient("passthrough:///"+h.Addr, grpc.WithTransportCredentials(n.Credentials()), grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := swarmv1.NewDispatcherClient(conn).Assignments(hubtest.Within(t), &swarmv1.AssignmentsRequest{SessionId: id})
	if err != nil {
		t.Fatal(err)
	}
	// The headers come with the first part of the message, and the rest does not fit.
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	hubtest.MustOpen(t, again(h, n), "")
	for state := conn.GetState(); state == connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(hubtest.Within(t), state) {
			t.Fatal("the connection stays")
		}
	}
}

// TestStreamsOfASession: each may hold a message that nobody reads, so that there are not many.
func TestStreamsOfASession(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	var first grpc.ServerStreamingClient[swarmv1.AssignmentsMessage]
	for range 8 {
		first = hubtest.Assignments(t, n, id)
		hubtest.Receive(t, first)
	}
	_, err := hubtest.Ended(hubtest.Assignments(t, n, id))
	hubtest.Wants(t, "a stream too many", err, codes.ResourceExhausted, "8 streams")
	tasks, err := n.Dispatcher.Tasks(hubtest.Within(t), &swarmv1.TasksRequest{SessionId: id})
	if err != nil {
		t.Fatal(err)
	}
	_, err = hubtest.Ended(tasks)
	hubtest.Wants(t, "a stream of tasks too many", err, codes.ResourceExhausted, "8 streams")
	// A new session has none.
	hubtest.Receive(t, hubtest.Assignments(t, n, hubtest.MustOpen(t, n, "").First.GetSessionId()))
}

// TestConnectionsOfANode: the oldest one goes when there are too many.
func TestConnectionsOfANode(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	for range 8 {
		other := again(h, n)
		if _, err := other.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id}); err != nil {
			t.Fatal(err)
		}
	}
	for state := n.Conn.GetState(); state == connectivity.Ready; state = n.Conn.GetState() {
		if !n.Conn.WaitForStateChange(hubtest.Within(t), state) {
			t.Fatal("the ninth connection has not ended the first")
		}
	}
	// It is the transport alone that ended: the session is the node's still.
	if _, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
}

// TestRequestsThatAreTooLarge: the contract's codes; unknown tasks leave nothing behind.
func TestRequestsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	bomb := &swarmv1.NodeDescription{Hostname: "edge", Engine: &swarmv1.EngineDescription{Labels: map[string]string{}}}
	for i := range 8000 {
		bomb.Engine.Labels[fmt.Sprint("label-", i)] = strings.Repeat("x", 32)
	}
	session := func(d *swarmv1.NodeDescription) error {
		stream, err := n.Dispatcher.Session(hubtest.Within(t), &swarmv1.SessionRequest{Description: d})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	hubtest.Wants(t, "a label bomb", session(bomb), codes.InvalidArgument, "description")
	hubtest.Wants(t, "10 MB of a description", session(&swarmv1.NodeDescription{Hostname: strings.Repeat("x", 10<<20)}), codes.ResourceExhausted, "larger than max")
	if node, _, _ := h.Inventory.Node(n.NodeID); node.GetDescription() != nil {
		t.Error("a description that was refused is stored")
	}
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	report := func(updates ...*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate) error {
		_, err := n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: id, Updates: updates})
		return err
	}
	status := func(task, message string) *swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate {
		return &swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{TaskId: task, Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_RUNNING, Message: message}}
	}
	hubtest.Wants(t, "10 MB of a status", report(status("t", strings.Repeat("x", 10<<20))), codes.ResourceExhausted, "larger than max")
	var unknown []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate
	for i := range 10_000 {
		unknown = append(unknown, status(fmt.Sprint("unknown-", i), "runs"))
	}
	before := h.Inventory.Next()
	if err := report(unknown...); err != nil {
		t.Errorf("statuses of unknown tasks: %v", err)
	}
	hubtest.Commit(t, h, hubtest.Task("t", n.NodeID, swarmv1.TaskState_RUNNING))
	<-before
	if err := report(status("t", strings.Repeat("x", 1<<20))); err != nil {
		t.Error(err)
	}
	hubtest.Until(t, h, "t runs", func() bool { task, _ := h.Inventory.Task("t"); return task.State() == swarmv1.TaskState_RUNNING })
	if task, _ := h.Inventory.Task("t"); len(task.Status.M.GetMessage()) > 9<<10 {
		t.Errorf("%d bytes of a status' text are kept", len(task.Status.M.GetMessage()))
	}
	if all := h.Inventory.Tasks(); len(all) != 1 {
		t.Errorf("%d tasks", len(all))
	}
}

// TestAssignmentsOverWhatWorkersRead are sent, and warned of.
func TestAssignmentsOverWhatWorkersRead(t *testing.T) {
	t.Parallel()
	log := &lines{}
	h := hubtest.New(t, func(o *hub.Options) { o.Hold, o.Log = true, slog.New(slog.NewTextHandler(log, nil)) })
	n := h.Join()
	needs := []string{}
	for i := range 5 {
		id := fmt.Sprint("config-", i)
		needs = append(needs, id)
		hubtest.Commit(t, h, inventory.Put(inventory.Configs, id, &swarmv1.Config{Id: id, Spec: &swarmv1.ConfigSpec{Data: make([]byte, 900<<10)}}, store.Any))
	}
	hubtest.Commit(t, h, hubtest.Task("a", n.NodeID, swarmv1.TaskState_RUNNING, needs...))
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	stream, err := n.Dispatcher.Assignments(hubtest.Within(t), &swarmv1.AssignmentsRequest{SessionId: id}, grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	if m := hubtest.Receive(t, stream); len(m.GetChanges()) != 6 {
		t.Errorf("%d changes", len(m.GetChanges()))
	}
	if text := log.text(); !strings.Contains(text, "larger than some workers read") || !strings.Contains(text, n.NodeID) {
		t.Errorf("the log: %s", text)
	}
}

// lines is a log.
type lines struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestARegistrationFlood of one node comes to nothing but refusals.
func TestARegistrationFlood(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	began := time.Now()
	opened := 0
	var last error
	for range 200 {
		if _, err := hubtest.Open(t, n, ""); err != nil {
			last = err
		} else {
			opened++
		}
	}
	// A first one and three more in each 8 seconds.
	if most := 1 + 3*(1+int(time.Since(began)/(8*time.Second))) + 3; opened > most {
		t.Errorf("%d of 200 registrations were taken, at most %d may be", opened, most)
	}
	hubtest.Wants(t, "the last registration", last, codes.Unavailable, "exceeded rate limit count of registrations")
}

// TestStrangersHoldNoMemory: a client without a certificate makes the hub keep only a little, for
// any data at any speed.
func TestStrangersHoldNoMemory(t *testing.T) { //nolint:paralleltest // it looks at the heap
	h := hubtest.New(t)
	n := h.Join()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const connections, streams = 16, 32
	ended := make(chan error, connections)
	for range connections {
		go func() {
			sent, err := flood{addr: h.Addr, path: "/docker.swarmkit.v1.NodeCA/IssueNodeCertificate", streams: streams}.pour(t)
			if err == nil && sent > 1<<20 {
				err = fmt.Errorf("%d bytes were taken", sent)
			}
			ended <- err
		}()
	}
	for range connections {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// Had each call got its 4 MiB, it would be 2 GiB.
	if after := heap(); after > before+128<<20 {
		t.Errorf("the heap has grown from %d to %d MB", before>>20, after>>20)
	}
	for name, first := range map[string][]byte{"garbage": bytes.Repeat([]byte("\x16\x03\x01\xff\xff garbage"), 100), "HTTP": []byte("GET / HTTP/1.1\r\n\r\n")} {
		conn, err := net.Dial("tcp", h.Addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(first)
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
	}
	hubtest.MustOpen(t, n, "") // the hub serves
}

// TestNodesHoldLittleMemory: the hub keeps only a few incomplete messages of a node, in any number of calls and
// connections; one more ends its connection. The node's session continues.
func TestNodesHoldLittleMemory(t *testing.T) { //nolint:paralleltest // it looks at the heap
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	most, sum, ended := uint64(0), 0, make(chan int, 4)
	creds := tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{n.Pair}}
	for range cap(ended) { // beside the one that it has, fewer than the eight that it may have
		go func() {
			sent, err := flood{addr: h.Addr, path: "/docker.swarmkit.v1.Dispatcher/UpdateTaskStatus", streams: 64, tls: &creds}.pour(t)
			if err != nil {
				t.Error(err)
			}
			ended <- sent
		}()
	}
	for range cap(ended) {
		sum += <-ended
		most = max(most, heap())
	}
	t.Logf("%d MB were sent, the heap has grown from %d to at most %d MB", sum>>20, before>>20, most>>20)
	// Had each call got its 4 MiB, it would be a gigabyte. Each connection that ends frees its
	// memory.
	if sum > cap(ended)*20<<20 {
		t.Errorf("%d MB were taken", sum>>20)
	}
	if most > before+160<<20 {
		t.Errorf("the heap has grown from %d to %d MB", before>>20, most>>20)
	}
	if _, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id}); err != nil {
		t.Errorf("the node's session: %v", err)
	}
	report := func(size int) error {
		_, err := n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: id, Updates: []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{
			{TaskId: "unknown", Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_RUNNING, Message: strings.Repeat("x", size)}},
		}})
		return err
	}
	for range 5 { // of messages that are complete, any number comes through one connection
		if err := report(4<<20 - 100); err != nil {
			t.Fatal(err)
		}
	}
}

// flood makes calls with endless messages.
type flood struct {
	addr, path string
	streams    int
	tls        *tls.Config // nil is without a certificate
}

// pour makes them, until the hub closes the connection, and returns how many bytes of them were sent.
func (f flood) pour(t *testing.T) (sent int, err error) {
	config, streams := f.tls, f.streams
	if config == nil {
		config = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	}
	conn, err := tls.Dial("tcp", f.addr, config)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if d, ok := t.Deadline(); ok {
		_ = conn.SetDeadline(d)
	}
	w := &windows{streams: streams, of: map[uint32]int{}, changed: make(chan struct{}, 1)}
	out := http2.NewFramer(conn, conn)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		w.read(out)
	}()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", f.path}, {":authority", "hub"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return 0, err
		}
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, out.WriteSettings())
	header := binary.BigEndian.AppendUint32([]byte{0}, 4<<20-1) // so long is the message
	for i := range streams {
		id := uint32(2*i + 1)
		err = errors.Join(err, out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}), out.WriteData(id, false, header))
	}
	for i := 0; err == nil; i++ {
		id := uint32(2*(i%streams) + 1)
		if !w.take(id, 4<<10) {
			if i%streams == streams-1 { // none has room
				select {
				case <-w.changed:
				case <-closed:
					return sent, nil
				}
			}
			continue
		}
		err = out.WriteData(id, false, make([]byte, 4<<10))
		sent += 4 << 10
	}
	<-closed
	return sent, nil
}

// windows has the bytes that a peer takes: of streams, and, as stream 0, of the connection. They come on
// top of HTTP/2's initial windows.
type windows struct {
	streams int
	mu      sync.Mutex // guards of
	of      map[uint32]int
	changed chan struct{}
}

// read notes the peer's updates, until the connection ends.
func (w *windows) read(f *http2.Framer) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		if u, ok := frame.(*http2.WindowUpdateFrame); ok {
			w.mu.Lock()
			w.of[u.StreamID] += int(u.Increment)
			w.mu.Unlock()
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}
}

// take takes room for so many bytes, if there is.
func (w *windows) take(id uint32, n int) bool {
	const initial = 65535 - 5 // each stream has had the head of its message
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[id]+initial < n || w.of[0]+initial-5*w.streams < n {
		return false
	}
	w.of[id] -= n
	w.of[0] -= n
	return true
}
