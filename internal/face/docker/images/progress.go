package images

import (
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
)

// words are docker's words for the states of a layer.
type words map[string]string

var (
	pullWords = words{ //nolint:gochecknoglobals // a constant
		"waiting": "Pulling fs layer", "downloading": "Downloading", "unpacking": "Extracting", "exists": "Already exists", "done": "Pull complete",
	}
	pushWords = words{ //nolint:gochecknoglobals // a constant
		"waiting": "Preparing", "uploading": "Pushing", "pushed": "Pushed", "exists": "Layer already exists",
	}
)

// sendEvery is the time between two messages about a layer: the command line draws each.
const sendEvery = 100 * time.Millisecond

// progress sends the progress of a transfer's layers to a client. A client that reads slowly gets fewer messages, and does not delay
// the transfer.
type progress struct {
	out   *dockerhttp.Stream
	words words
	skip  digest.Digest // a blob that is not a layer
	// moving holds the messages about layers back until one of them is transferred: docker shows none if the image is up to date.
	moving bool
	// first is sent before everything else, once the image is resolved.
	first []dockertypes.Progress

	changed chan struct{} // has one element when there is something to send
	stop    chan struct{}
	ended   chan struct{} // closed when nothing more is sent

	mu     sync.Mutex // guards layers, begun, moved
	layers []layerState
	begun  bool
	moved  bool
}

// layerState has the last report about a layer, and the messages that were sent.
type layerState struct {
	core.PullProgress
	sent   bool // it was sent
	begun  bool // the layer's first message was sent
	loaded bool // all bytes were received, and the message about that was not sent
}

// follow returns a progress that sends from a goroutine of its own until it is finished.
func follow(out *dockerhttp.Stream, w words, first ...dockertypes.Progress) *progress {
	p := &progress{out: out, words: w, first: first, changed: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	go p.run()
	return p
}

// step takes a report. It never waits for the client.
func (p *progress) step(s core.PullProgress) {
	if s.Status == "resolving" || s.Status == "verifying" || s.Blob != "" && s.Blob == p.skip {
		return
	}
	p.mu.Lock()
	p.begun = true
	p.moved = p.moved || !p.moving || s.Blob != "" && s.Status != "waiting" && s.Status != "exists"
	if s.Blob != "" {
		i := slices.IndexFunc(p.layers, func(l layerState) bool { return l.Blob == s.Blob })
		if i < 0 {
			i = len(p.layers)
			p.layers = append(p.layers, layerState{})
		}
		l := &p.layers[i]
		l.loaded = l.loaded || s.Status == "downloading" && s.Done >= s.Total && l.Status != "done"
		l.PullProgress, l.sent = s, false
	}
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// finish sends the rest, and waits until it is sent.
func (p *progress) finish() {
	close(p.stop)
	<-p.ended
}

func (p *progress) run() {
	defer close(p.ended)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-p.stop:
			_ = p.flush() // the client may be gone
			return
		case <-p.changed:
		}
		if p.flush() != nil { // the client is gone, and the request's context ends
			<-p.stop
			return
		}
		pause.Reset(sendEvery)
		select {
		case <-p.stop:
		case <-pause.C:
		}
	}
}

// flush sends a message for each layer that has changed since the last flush.
func (p *progress) flush() error {
	p.mu.Lock()
	var list []dockertypes.Progress
	if p.begun {
		list, p.first = p.first, nil
	}
	for i := range p.layers {
		l := &p.layers[i]
		if p.moving && l.Status == "exists" {
			l.begun = true // of a pull, such a layer has one message
		}
		if p.moved && !l.begun {
			l.begun = true
			list = append(list, p.message(core.PullProgress{Blob: l.Blob, Status: "waiting"}))
		}
	}
	for i := range p.layers {
		if l := &p.layers[i]; p.moved && !l.sent {
			l.sent = true
			list = append(list, p.news(l)...)
		}
	}
	p.mu.Unlock()
	for _, m := range list {
		if err := p.out.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// news returns the messages about a layer's last report. Preconditions: mu is held.
func (p *progress) news(l *layerState) (list []dockertypes.Progress) {
	if l.loaded {
		l.loaded = false
		m := p.message(l.PullProgress)
		m.Status, m.Progress = "Download complete", &dockertypes.ProgressDetail{}
		list = append(list, m)
	}
	if l.Status == "waiting" || l.Status == "downloading" && l.Done >= l.Total {
		return list
	}
	return append(list, p.message(l.PullProgress))
}

func (p *progress) message(s core.PullProgress) dockertypes.Progress {
	m := dockertypes.Progress{Status: p.words[s.Status], Progress: &dockertypes.ProgressDetail{}, ID: short(s.Blob.Encoded())}
	if s.Status == "downloading" || s.Status == "uploading" {
		m.Progress = &dockertypes.ProgressDetail{Current: s.Done, Total: s.Total}
	}
	return m
}

// shortID is the number of an ID's digits in messages.
const shortID = 12

func short(id string) string {
	return id[:min(len(id), shortID)]
}
