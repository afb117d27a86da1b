package ui

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// maxTerminals bounds the programs that pages run at once.
const maxTerminals = 16

// terminals are the programs that pages run, by random names that only their pages know.
type terminals struct {
	mu   sync.Mutex // guards open
	open map[string]*terminal
}

// terminal is one program.
type terminal struct {
	user string

	mu   sync.Mutex // serializes send: a gRPC stream takes one sender at a time
	send func(*longshorev1.ExecRequest) error
}

func (t *terminals) add(x *terminal) (id string, ok bool) {
	id = rand.Text()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[string]*terminal{}
	}
	if len(t.open) >= maxTerminals {
		return "", false
	}
	t.open[id] = x
	return id, true
}

func (t *terminals) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, id)
}

// of returns the terminal that a request of the same user names.
func (t *terminals) of(r *http.Request) (*terminal, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.open[r.PathValue("id")]
	if x == nil || x.user != userOf(r.Context()) {
		return nil, requestError{http.StatusNotFound, "there is no such terminal: its program has ended"}
	}
	return x, nil
}

func (t *terminal) input(in *longshorev1.Input) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Input{Input: in}})
}

// The kinds of frames of an answer to exec. A frame is its kind, the length of its content in four bytes, and its content.
const (
	frameName   = 0 // the terminal's name, for its input
	frameOutput = 1
	frameExit   = 2 // the exit status or the reason why there is none, as text; the last one
)

// askExec is a request for a terminal.
type askExec struct {
	ID      string   `json:"id"`
	Owner   string   `json:"owner"` // as in ask
	Command []string `json:"command"`
	User    string   `json:"user"`
	Cols    uint32   `json:"cols"`
	Rows    uint32   `json:"rows"`
}

// size returns the size of a terminal, within reasonable bounds.
func size(cols, rows uint32) *longshorev1.Size {
	return &longshorev1.Size{Cols: min(max(cols, 1), 1000), Rows: min(max(rows, 1), 1000)}
}

// exec runs a program with a terminal. Its output is the answer's body; the program ends with the request.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	if !s.o.Actions {
		return errReadOnly
	}
	var a askExec
	if err := readAsk(r, &a); err != nil {
		return err
	}
	if len(a.Command) == 0 {
		return requestError{http.StatusBadRequest, "the request names no command"}
	}
	force, err := s.confirmed(r.Context(), a.ID, a.Owner)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, err := s.api.containers.Exec(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: &longshorev1.ExecStart{
		Name: a.ID, Command: a.Command, User: a.User, Tty: true, Stdin: true, Size: size(a.Cols, a.Rows), Force: force, Env: []string{"TERM=xterm-256color"},
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the answer has the reason
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err // it could not be started; the answer has not begun
	}
	t := &terminal{user: userOf(r.Context()), send: stream.Send}
	id, ok := s.terms.add(t)
	if !ok {
		return requestError{http.StatusServiceUnavailable, "too many terminals are open: close one"}
	}
	defer s.terms.remove(id)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	out := frames{w, http.NewResponseController(w)}
	if out.send(frameName, []byte(id)) != nil {
		return nil
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			_ = out.send(frameExit, []byte(err.Error()))
			return nil
		}
		switch k := m.GetKind().(type) {
		case *longshorev1.Output_Stdout:
			err = out.send(frameOutput, k.Stdout)
		case *longshorev1.Output_Stderr:
			err = out.send(frameOutput, k.Stderr)
		case *longshorev1.Output_Exited:
			_ = out.send(frameExit, []byte(k.Exited.GetVerdict()))
			return nil
		}
		if err != nil {
			return nil // the page has gone
		}
	}
}

// frames sends frames, each at once.
type frames struct {
	w    io.Writer
	ctrl *http.ResponseController
}

func (f frames) send(kind byte, data []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data)))
	if _, err := f.w.Write(append(head, data...)); err != nil {
		return err
	}
	return f.ctrl.Flush()
}

// execInput passes the body of a request to a program.
func (s *Server) execInput(w http.ResponseWriter, r *http.Request) error {
	t, err := s.terms.of(r)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return requestError{http.StatusRequestEntityTooLarge, "the input is too long: send it in parts"}
	}
	if err := t.input(&longshorev1.Input{Kind: &longshorev1.Input_Stdin{Stdin: data}}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// execSize changes the size of a program's terminal.
func (s *Server) execSize(w http.ResponseWriter, r *http.Request) error {
	t, err := s.terms.of(r)
	if err != nil {
		return err
	}
	var to struct {
		Cols uint32 `json:"cols"`
		Rows uint32 `json:"rows"`
	}
	if err := readAsk(r, &to); err != nil {
		return err
	}
	if err := t.input(&longshorev1.Input{Kind: &longshorev1.Input_Resize{Resize: size(to.Cols, to.Rows)}}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
