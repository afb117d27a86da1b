package mesos

import (
	"context"
	"iter"
	"net/http"
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/fetch"
	"github.com/longshore/longshore/internal/face/mesos/view"
)

// View reads what is on the node; it changes nothing.
type View struct {
	records
	stats engine.Stats
}

// ViewOf returns the View of a client's objects.
func ViewOf(c *engine.Client) *View { return &View{c, c.Stats} }

// records are what a View reads of an engine.Client.
type records interface {
	Sandboxes(ctx context.Context, f core.Filter) ([]core.Sandbox, error)
	Containers(ctx context.Context, f core.Filter) ([]core.Container, error)
	Events(ctx context.Context, since uint64, f core.Filter) iter.Seq2[core.Event, error]
	LastSeq(ctx context.Context) (uint64, error)
	Container(ctx context.Context, id core.ID) (core.Container, error)
}

// shows answers the calls that show what is here as the work of frameworks. There
// is no master: this face is a framework among the others, and what stands for an
// agent's id is the machine's name.
type shows struct {
	view  *View
	all   bool // it shows other owners
	agent string
	disk  string // a path on the file system that sandboxes are on
	gpus  int
	cache *fetch.Cache
	began time.Time
	tally view.Counters
}

func (s *shows) node(ctx context.Context) (view.Node, error) {
	n := view.Node{Agent: s.agent}
	var err error
	if n.Sandboxes, err = s.view.Sandboxes(ctx, core.Filter{}); err != nil {
		return n, err
	}
	n.Containers, err = s.view.Containers(ctx, core.Filter{})
	return n, err
}

func (s *shows) getState(ctx context.Context, x *api.Exchange) error {
	n, err := s.node(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_STATE.Enum(), GetState: n.State()})
}

func (s *shows) getFrameworks(ctx context.Context, x *api.Exchange) error {
	n, err := s.node(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_FRAMEWORKS.Enum(), GetFrameworks: n.Frameworks()})
}

func (s *shows) getExecutors(ctx context.Context, x *api.Exchange) error {
	n, err := s.node(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_EXECUTORS.Enum(), GetExecutors: n.Executors()})
}

func (s *shows) getTasks(ctx context.Context, x *api.Exchange) error {
	n, err := s.node(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_TASKS.Enum(), GetTasks: n.Tasks()})
}

// getAgent tells of the machine; an id is what a master gives.
func (s *shows) getAgent(_ context.Context, x *api.Exchange) error {
	all, err := view.MachineResources(s.disk, s.gpus)
	if err != nil {
		return err
	}
	info := &mesosv1.AgentInfo{Hostname: &s.agent, Resources: all}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_AGENT.Enum(), GetAgent: &mesosagent.Response_GetAgent{AgentInfo: info}})
}

func (s *shows) getMetrics(ctx context.Context, x *api.Exchange) error {
	all, err := view.MachineMetrics(s.began)
	if err != nil {
		return err
	}
	n, err := s.node(ctx)
	if err != nil {
		return err
	}
	has, err := view.MachineResources(s.disk, s.gpus)
	if err != nil {
		return err
	}
	all = append(all, view.WorkMetrics(n.State(), has)...)
	all = append(all, s.tally.Metrics()...)
	all = append(all, view.CacheMetrics(s.cache.Used())...)
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_METRICS.Enum(), GetMetrics: view.Metrics(all)})
}

// others are the containers of the other owners that run, as those of executors.
func (s *shows) others(ctx context.Context) ([]*mesosagent.Response_GetContainers_Container, error) {
	if !s.all {
		return nil, nil
	}
	n, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	sandboxes := map[core.ID]*core.Sandbox{}
	for i := range n.Sandboxes {
		sandboxes[n.Sandboxes[i].ID] = &n.Sandboxes[i]
	}
	var all []*mesosagent.Response_GetContainers_Container
	for i := range n.Containers {
		c := &n.Containers[i]
		sb := sandboxes[c.Sandbox]
		if c.Owner == core.OwnerMesos || sb == nil || !runs(c) {
			continue
		}
		r := view.ExecutorContainer(c, sb)
		if st, err := s.view.stats.OfContainer(ctx, c, wanted); err == nil { // left out where it cannot be told, as with Mesos
			r.ResourceStatistics = view.Statistics(st)
		}
		all = append(all, r)
	}
	return all, nil
}

// refuse refuses calls about containers of other owners that are shown here.
func (s *shows) refuse(ctx context.Context, call *mesosagent.Call) error {
	id := api.ContainerIDOf(call)
	if id == nil {
		id = call.GetAttachContainerInput().GetContainerId()
	}
	if id == nil || !s.all {
		return nil
	}
	c, err := s.view.Container(ctx, core.ID(api.RootOf(api.FormatID(id))))
	if err != nil || c.Owner == core.OwnerMesos {
		return nil //nolint:nilerr // it is none
	}
	return &api.Error{Code: http.StatusForbidden, Text: "403 Forbidden."}
}
