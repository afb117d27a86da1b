package compose

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/composefile"
)

// TestServicesHaveAnOrder checks orders and their opposites, also of circles and of services that are not there.
func TestServicesHaveAnOrder(t *testing.T) {
	g := graph{"web": {"api", "cache"}, "api": {"db"}, "db": nil, "cache": {"gone"}, "x": {"y"}, "y": {"x"}}
	after := func(list []string, a, b string) {
		t.Helper()
		if slices.Index(list, a) < slices.Index(list, b) {
			t.Errorf("%v: %s is before %s", list, a, b)
		}
	}
	list := g.order()
	if len(list) != len(g) {
		t.Errorf("order: %v", list)
	}
	after(list, "web", "api")
	after(list, "api", "db")
	after(list, "web", "cache")
	back := g.reversed().order()
	after(back, "db", "api")
	after(back, "api", "web")

	var mu sync.Mutex // guards seen
	var seen []string
	errs := g.walk(func(name string, failed map[string]error) error {
		mu.Lock()
		seen = append(seen, name)
		mu.Unlock()
		if name == "db" || len(failed) > 0 {
			return errors.New(name + " fails")
		}
		return nil
	})
	after(seen, "web", "api")
	after(seen, "api", "db")
	for name, fails := range map[string]bool{"db": true, "api": true, "web": true, "cache": false, "x": false, "y": false} {
		if (errs[name] != nil) != fails {
			t.Errorf("%s: %v", name, errs[name])
		}
	}
}

// TestTheOrderOfContainers checks that files win over labels.
func TestTheOrderOfContainers(t *testing.T) {
	of := func(service, needs string) *longshorev1.Container {
		return &longshorev1.Container{Labels: map[string]string{composefile.LabelService: service, composefile.LabelDependsOn: needs}}
	}
	list := []*longshorev1.Container{of("web", "db:service_started:false,cache:service_healthy:true"), of("web", "db:service_started:false,cache:service_healthy:true"), of("old", "web:service_started:false"), of("db", "")}
	g := graphOf(list, map[string][]string{"db": {"disk"}})
	if !slices.Equal(g["web"], []string{"db", "cache"}) || !slices.Equal(g["old"], []string{"web"}) || !slices.Equal(g["db"], []string{"disk"}) || len(g) != 3 {
		t.Errorf("got %v", g)
	}
}

// TestConditions checks each condition in each state of a container.
func TestConditions(t *testing.T) {
	ended := func(status int32) *longshorev1.Container {
		return &longshorev1.Container{Name: "c", State: "exited", Autopsy: &longshorev1.Autopsy{Status: status}}
	}
	up := func(health string) *longshorev1.Container {
		return &longshorev1.Container{Name: "c", State: "running", Health: health}
	}
	created := &longshorev1.Container{Name: "c", State: "created"}
	for _, c := range []struct {
		container *longshorev1.Container
		condition string
		want      string // yes, later, or a part of the error
	}{
		{up("healthy"), composefile.Healthy, "yes"},
		{up("starting"), composefile.Healthy, "later"},
		{up("unhealthy"), composefile.Healthy, "container c is unhealthy"},
		{up(""), composefile.Healthy, "container c has no health check"},
		{created, composefile.Healthy, "later"},
		{ended(0), composefile.Healthy, "ended with the exit status 0"},
		{ended(0), composefile.Completed, "yes"},
		{ended(3), composefile.Completed, "ended with the exit status 3"},
		{up(""), composefile.Completed, "later"},
		{up("unhealthy"), composefile.Completed, "later"},
		{up(""), runs, "yes"},
		{up("starting"), runs, "later"},
		{up("healthy"), runs, "yes"},
		{up("unhealthy"), runs, "container c is unhealthy"},
		{ended(0), runs, "ended with the exit status 0"},
		{created, runs, "later"},
	} {
		ok, err := fulfils(c.container, c.condition)
		got := map[bool]string{true: "yes", false: "later"}[ok]
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s, %s, %s: %s, want %s", c.container.GetState(), c.container.GetHealth(), c.condition, got, c.want)
		}
	}
}

// TestFlagsThatExcludeEachOther checks the errors of flags.
func TestFlagsThatExcludeEachOther(t *testing.T) {
	for want, f := range map[string]upFlags{
		"--build":                    {build: true},
		"--force-recreate":           {force: true, keep: true},
		"--abort-on-container-exit":  {abort: true, detach: true},
		"--wait cannot":              {wait: true, noStart: true},
		`--pull "often"`:             {pull: "often"},
		`--scale "web" is not`:       {scale: []string{"web"}},
		`--scale "web=-1" is not`:    {scale: []string{"web=-1"}},
		"--abort-on-container-exit ": {exitFrom: "web", wait: true},
	} {
		if _, err := f.options(nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	f := upFlags{scale: []string{"web=3", "db=0"}, wait: true}
	o, err := f.options([]string{"web"})
	if err != nil || o.Scale["web"] != 3 || o.Scale["db"] != 0 || len(o.Scale) != 2 || !f.detach || o.Services[0] != "web" {
		t.Errorf("got %+v, %v", o, err)
	}
}
