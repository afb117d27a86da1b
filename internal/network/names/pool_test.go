package names

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestManyFloodsAreBoundedTogether: a hundred sandboxes that ask without pause are answered at the rate of
// the whole process, and a quiet one beside them at once. Without a pool they get all that they ask.
func TestManyFloodsAreBoundedTogether(t *testing.T) {
	const floods, seconds = 100, 10
	run := func(t *testing.T, p *pool) (taken, late int) {
		t.Helper()
		quiet := newBudget(p)
		all := []*budget{quiet}
		for range floods {
			all = append(all, newBudget(p))
		}
		if p != nil {
			for range all {
				p.join()
			}
		}
		for range seconds * 10 {
			for _, b := range all[1:] {
				for b.take() {
					taken++
				}
			}
			if !quiet.take() {
				late++
			}
			<-time.After(100 * time.Millisecond)
		}
		return taken, late
	}
	synctest.Test(t, func(t *testing.T) {
		taken, late := run(t, newPool())
		if most := 2*poolRate*seconds + 2*poolBurst; taken > most || taken < most/2 {
			t.Errorf("%d questions were read in %d s, want about %d", taken, seconds, most)
		}
		if late > 0 {
			t.Errorf("the quiet sandbox waited %d times", late)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if taken, _ := run(t, nil); taken < floods*questionRate*(seconds-1) {
			t.Errorf("without a pool %d questions were read, so this test sees no fault", taken)
		}
	})
}

// TestForwardedQuestionsAreBoundedTogether: those beyond each sandbox's own come from one number.
func TestForwardedQuestionsAreBoundedTogether(t *testing.T) {
	p := newPool()
	var last func()
	taken := 0
	for others := ownForwards; ; others++ {
		done, ok := p.forward(others)
		if !ok {
			break
		}
		last = done
		taken++
	}
	if taken != poolForwards {
		t.Errorf("%d questions are forwarded, want %d", taken, poolForwards)
	}
	if _, ok := p.forward(ownForwards - 1); !ok {
		t.Error("a quiet sandbox may not forward a question")
	}
	last()
	if _, ok := p.forward(maxForwarded - 1); !ok {
		t.Error("what has ended still counts")
	}
}
