package server

import (
	"slices"
	"time"

	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/shortage"
)

// unsent are the messages that a shortage of descriptors or memory has kept from the nest. They are
// sent later, in this order: frames, then the items with these keys in their state then, then the
// questions.
type unsent struct {
	frames  []keptFrame
	keys    []string
	asks    int  // questions whether the nest has handled all earlier messages
	waiting bool // for the next attempt
	logged  bool
}

// keptFrame is a frame without descriptors.
type keptFrame struct {
	kind wire.Kind
	m    wire.Message
}

// lacksPause is when an item is sent again that the nest could not receive.
const lacksPause = time.Second

// put stores an item with the nest. It is safe once it is sent: the nest reads the socket to its
// end even if the keeper dies. During a shortage it is sent later.
func (n *nest) put(s *Server, it *wire.Item, fds []int) {
	if !n.behind() && n.trySend(s, wire.KindNestPut, it, fds) == nil {
		return
	}
	n.unsent.add(it.Key)
	n.retry(s, shortage.Pause)
}

func (u *unsent) add(key string) {
	if !slices.Contains(u.keys, key) {
		u.keys = append(u.keys, key)
	}
}

// putAgain stores the item with this key with the nest again, or all items if key is empty.
func (n *nest) putAgain(s *Server, key string) {
	if key != "" {
		n.unsent.add(key)
	} else {
		for _, p := range s.procs {
			if p.stored {
				n.unsent.add(p.key)
			}
		}
		for name := range s.heldFiles {
			n.unsent.add(wire.HeldPrefix + name)
		}
	}
	n.retry(s, lacksPause)
}

// drop has the nest drop an item.
func (n *nest) drop(s *Server, key string) {
	n.unsent.keys = slices.DeleteFunc(n.unsent.keys, func(k string) bool { return k == key })
	n.send(s, wire.KindNestDrop, &wire.Drop{Key: key})
}

// send sends a frame without descriptors. It may overtake items, because it is about none of them.
func (n *nest) send(s *Server, k wire.Kind, m wire.Message) {
	if len(n.unsent.frames) == 0 && n.trySend(s, k, m, nil) == nil {
		return
	}
	n.unsent.frames = append(n.unsent.frames, keptFrame{k, m})
	n.retry(s, shortage.Pause)
}

// ask asks the nest whether it has handled all earlier messages.
func (n *nest) ask(s *Server) {
	if !n.behind() && n.trySend(s, wire.KindNestAsk, &wire.Child{}, nil) == nil {
		return
	}
	n.unsent.asks++
	n.retry(s, shortage.Pause)
}

// behind reports whether something was kept from the nest.
func (n *nest) behind() bool {
	u := &n.unsent
	return len(u.frames)+len(u.keys)+u.asks > 0
}

// retry sends the delayed messages after a pause.
func (n *nest) retry(s *Server, pause time.Duration) {
	if n.unsent.waiting || n.fd < 0 {
		return
	}
	if !n.unsent.logged {
		logLine("descriptors or memory are used up: descriptors for the nest are sent later")
		n.unsent.logged = true
	}
	n.unsent.waiting = true
	s.delays.after(pause, func() { n.flush(s) })
}

// flush sends the delayed messages, as far as that is possible.
func (n *nest) flush(s *Server) {
	n.unsent.waiting = false
	for n.behind() && n.fd >= 0 {
		u := &n.unsent
		var err error
		switch {
		case len(u.frames) > 0:
			if err = n.trySend(s, u.frames[0].kind, u.frames[0].m, nil); err == nil && n.fd >= 0 {
				u.frames = u.frames[1:]
			}
		case len(u.keys) > 0:
			key := u.keys[0]
			u.keys = u.keys[1:] // now, because the nest may ask for this item again while it is sent
			if it, fds, ok := itemOf(s, key); ok {
				err = n.trySend(s, wire.KindNestPut, &it, fds)
			}
			if err != nil && !slices.Contains(u.keys, key) {
				u.keys = slices.Insert(u.keys, 0, key)
			}
		default:
			if err = n.trySend(s, wire.KindNestAsk, &wire.Child{}, nil); err == nil && n.fd >= 0 {
				u.asks--
			}
		}
		if err != nil {
			n.retry(s, shortage.Pause)
			return
		}
	}
	if n.unsent.logged && n.fd >= 0 {
		logLine("the nest holds everything again")
	}
	n.unsent = unsent{}
}

// itemOf returns the item with this key as the nest is to hold it.
func itemOf(s *Server, key string) (it wire.Item, fds []int, ok bool) {
	if name, held := heldName(key); held {
		fds = s.heldFiles[name]
		return heldItem(name, len(fds)), fds, len(fds) > 0
	}
	p := s.byKey[key]
	if p == nil || !p.stored {
		return it, nil, false
	}
	it, fds = p.item(s)
	return it, fds, true
}

// delays are functions that the loop calls later.
type delays []delayed

// delayed is a function that the loop calls at a time.
type delayed struct {
	at time.Time
	fn func()
}

// after has the loop call fn when d has passed.
func (l *delays) after(d time.Duration, fn func()) {
	*l = append(*l, delayed{time.Now().Add(d), fn})
}

// delayedWait returns for how many milliseconds the loop may sleep until a delayed function is due; -1
// means for ever.
func (l *delays) wait(now time.Time) int {
	least := -1
	for _, d := range *l {
		ms := int((max(0, d.at.Sub(now)) + time.Millisecond - 1) / time.Millisecond)
		if least < 0 || ms < least {
			least = ms
		}
	}
	return least
}

// call calls the functions that are due.
func (l *delays) call(now time.Time) {
	var due []func()
	*l = slices.DeleteFunc(*l, func(d delayed) bool {
		if d.at.After(now) {
			return false
		}
		due = append(due, d.fn)
		return true
	})
	for _, fn := range due {
		fn()
	}
}
