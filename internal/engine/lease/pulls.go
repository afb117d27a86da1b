package lease

import (
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
)

// keptPulls is how many images' last pulls are remembered.
const keptPulls = 128

// Pulls remembers where the time of the images' last pulls went, until a container's record takes
// it over. The zero value is ready to use.
type Pulls struct {
	mu      sync.Mutex // guards last, order, active, changed
	last    map[digest.Digest]core.Trace
	order   []digest.Digest // the oldest first
	active  []*Pull         // the oldest first
	changed chan struct{}   // closed when a pull begins or ends; nil if nobody waits
}

// Of returns where the time of an image's last pull went; "" when it was not pulled since the agent
// began.
func (p *Pulls) Of(image digest.Digest) core.Trace {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[image]
}

func (p *Pulls) add(image digest.Digest, t core.Trace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[digest.Digest]core.Trace{}
	}
	if _, known := p.last[image]; !known {
		p.order = append(p.order, image)
	}
	if p.last[image] = t; len(p.order) > keptPulls {
		delete(p.last, p.order[0])
		p.order = p.order[1:]
	}
}

// Watch begins a pull, which is under way until Leave: the returned Pull follows its progress, beside the one of opts.
func (p *Pulls) Watch(owner core.Owner, ref string, opts *core.PullOptions) *Pull {
	w := &Pull{of: p, began: time.Now(), owner: owner, ref: ref, fetched: map[digest.Digest]int64{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active = append(p.active, w)
	p.announce()
	report := opts.Progress
	opts.Progress = func(pr core.PullProgress) {
		w.progress(pr)
		if report != nil {
			report(pr)
		}
	}
	return w
}

// Pull is a pull that is watched.
type Pull struct {
	of    *Pulls
	owner core.Owner
	ref   string
	began time.Time

	mu      sync.Mutex // guards first, last, fetched, status, blobs
	status  string     // of the whole
	blobs   []core.PullProgress
	first   time.Time // the start of the lookup of its first layer
	last    time.Time // when the last bytes came
	fetched map[digest.Digest]int64
}

func (w *Pull) progress(pr core.PullProgress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(w.blobs, func(b core.PullProgress) bool { return b.Blob == pr.Blob }); pr.Blob == "" {
		w.status = pr.Status
	} else if i >= 0 {
		w.blobs[i] = pr
	} else {
		w.blobs = append(w.blobs, pr)
	}
	now := time.Now()
	if w.first.IsZero() {
		if pr.Blob == "" && pr.Status != "downloading" {
			return // it is being resolved or verified
		}
		w.first, w.last = now, now
	}
	if pr.Blob != "" && pr.Status == "downloading" && pr.Done > w.fetched[pr.Blob] {
		w.last, w.fetched[pr.Blob] = now, pr.Done
	}
}

// End remembers the pull. Layers are unpacked while they are fetched, so that the stage "unpack" is
// the work after the last byte.
func (w *Pull) End(image digest.Digest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.first.IsZero() { // there was nothing to fetch
		w.first, w.last = now, now
	}
	v := core.TracedVerb{Verb: "pull", At: w.began, By: w.owner, Stages: []core.TracedStage{
		{Name: "resolve", Took: w.first.Sub(w.began)}, {Name: "fetch", Took: w.last.Sub(w.first)}, {Name: "unpack", Took: now.Sub(w.last)},
	}}
	for _, n := range w.fetched {
		v.Bytes += n
	}
	w.of.add(image, v.Trace())
}
