package attach

import (
	"context"
	"io"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// queueChunks is how many chunks of input wait for a process that does not read
// before the client has to wait too.
const queueChunks = 16

// Input passes a client's input to a process. It is used by one goroutine.
type Input struct {
	Engine *engine.Client
	Ref    core.Ref
	// Stdin is the process's input; nil drops all input.
	Stdin io.WriteCloser
	// Ends is as Session.EndsInput.
	Ends bool

	queue chan []byte // to the goroutine that writes; nil before the first chunk
	ended bool
}

// Write gives b to the process and returns once the process has taken it. It fails
// when the process has closed its input.
func (in *Input) Write(b []byte) (int, error) {
	if in.Stdin == nil {
		return len(b), nil
	}
	return in.Stdin.Write(b)
}

// Copy copies r to the process; after the process has closed its input, the rest is read and
// dropped. An error is r's.
func (in *Input) Copy(r io.Reader) error {
	_, err := io.Copy(in, r)
	if err != nil {
		_, err = io.Copy(io.Discard, r)
	}
	return err
}

// Send gives data, which it keeps, to the process, and does not wait for the process
// unless much else waits already. It returns early when ctx ends.
func (in *Input) Send(ctx context.Context, data []byte) {
	if in.Stdin == nil || in.ended || len(data) == 0 {
		return
	}
	in.open(ctx)
	select {
	case in.queue <- data:
	case <-ctx.Done():
	}
}

// End ends the process's input after the queued bytes; later bytes are dropped. If ctx has ended,
// the client has disconnected, and the input stays open.
func (in *Input) End(ctx context.Context) {
	if in.Stdin == nil || in.ended {
		return
	}
	in.open(ctx)
	in.ended = true
	close(in.queue)
}

// Resize tells the process's terminal its size, unless a dimension is 0.
func (in *Input) Resize(ctx context.Context, size core.Size) {
	if size.Rows > 0 && size.Cols > 0 {
		_ = in.Engine.Resize(ctx, in.Ref, size) // a process that has just ended has no size
	}
}

// open starts the goroutine that writes the queued bytes. It ends with ctx, or after End.
func (in *Input) open(ctx context.Context) {
	if in.queue == nil {
		in.queue = make(chan []byte, queueChunks)
		go in.write(ctx, in.queue)
	}
}

func (in *Input) write(ctx context.Context, queue <-chan []byte) {
	broken := false // the process has closed its input
	for {
		select {
		case <-ctx.Done():
			return
		case data, ok := <-queue:
			if !ok {
				in.closeStdin(ctx)
				return
			}
			if !broken {
				_, err := in.Stdin.Write(data)
				broken = err != nil
			}
		}
	}
}

func (in *Input) closeStdin(ctx context.Context) {
	switch {
	case ctx.Err() != nil:
	case in.Ends:
		_ = in.Engine.CloseStdin(ctx, in.Ref) // a process that has just ended has no input
	default:
		_ = in.Stdin.Close() // as far as its mode lets it
	}
}
