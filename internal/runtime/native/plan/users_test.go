package plan_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// mapped is a plan with a user namespace and a second child.
func mapped(uids, gids plan.IDMap) *plan.Builder {
	b := &plan.Builder{}
	if first := b.User(uids, gids); first != b.User(uids, gids) {
		panic("the same mapping twice")
	}
	b.Add("exit", unix.SYS_EXIT_GROUP, plan.V(0))
	b.AddFork("second", unix.CLONE_PARENT, 0, 0)
	return b
}

func TestUserNamespacesTravelWithThePlan(t *testing.T) {
	uids := plan.IDMap{{Inside: 0, Outside: 1000, Size: 1}, {Inside: 1, Outside: 100000, Size: 65535}}
	gids := plan.IDMap{{Inside: 0, Outside: 7, Size: 9}}
	p, err := plan.Place(aligned(mapped(uids, gids).Encode()))
	if err != nil {
		t.Fatal(err)
	}
	users := p.Users()
	if len(users) != 1 || users[0].Slot < plan.SlotFree || users[0].UIDs.String() != "0 1000 1\n1 100000 65535" || users[0].GIDs.String() != "0 7 9" || !p.Forks() {
		t.Errorf("%+v", users)
	}
	text, err := plan.Print(mapped(uids, gids).Encode())
	if err != nil || !strings.Contains(text, "uids 0 1000 1") || !strings.Contains(text, "clone with flags 0x8000 and end") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestACorruptedMappingIsRefused: before anything is made by it.
func TestACorruptedMappingIsRefused(t *testing.T) {
	good := plan.IDMap{{Inside: 0, Outside: 100000, Size: 65536}}
	for name, bad := range map[string]plan.IDMap{
		"empty":            {},
		"no ids":           {{Inside: 0, Outside: 5, Size: 0}},
		"past the last id": {{Inside: 0, Outside: 1<<32 - 10, Size: 10}},
		"inside past it":   {{Inside: 1<<32 - 10, Outside: 0, Size: 11}},
		"overlaps inside":  {{Inside: 0, Outside: 100, Size: 10}, {Inside: 9, Outside: 200, Size: 1}},
		"overlaps outside": {{Inside: 0, Outside: 100, Size: 10}, {Inside: 20, Outside: 95, Size: 6}},
		"too many":         make(plan.IDMap, plan.MaxRanges+1),
	} {
		for _, b := range []*plan.Builder{mapped(bad, good), mapped(good, bad)} {
			if err := plan.Check(aligned(b.Encode())); !errors.Is(err, plan.ErrMapping) && !errors.Is(err, plan.ErrBounds) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
