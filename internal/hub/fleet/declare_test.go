package fleet

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// TestUpdatesAndNetworksThatCannotBe are refused before anything is stored.
func TestUpdatesAndNetworksThatCannotBe(t *testing.T) {
	t.Parallel()
	on := func(n ...*swarmv1.NetworkAttachmentConfig) func(*swarmv1.ServiceSpec) {
		return func(s *swarmv1.ServiceSpec) { s.Task.Networks = n }
	}
	update := func(c *swarmv1.UpdateConfig) func(*swarmv1.ServiceSpec) {
		return func(s *swarmv1.ServiceSpec) { s.Update = c }
	}
	for _, c := range []struct {
		change func(*swarmv1.ServiceSpec)
		want   string
	}{
		{on(&swarmv1.NetworkAttachmentConfig{Target: "bridge"}), ""},
		{on(&swarmv1.NetworkAttachmentConfig{Target: "host"}), ""},
		{on(&swarmv1.NetworkAttachmentConfig{Target: "shop_default"}), `"shop_default" does not exist`},
		{on(&swarmv1.NetworkAttachmentConfig{Target: "bridge"}, &swarmv1.NetworkAttachmentConfig{Target: "host"}), "on 2 networks"},
		{on(&swarmv1.NetworkAttachmentConfig{Target: "bridge", Addresses: []string{"10.0.0.1"}}), "an address"},
		{func(s *swarmv1.ServiceSpec) { s.Networks = []*swarmv1.NetworkAttachmentConfig{{Target: "host"}} }, "networks of the service spec"},
		{update(&swarmv1.UpdateConfig{Delay: durationpb.New(time.Hour), Monitor: durationpb.New(time.Minute), MaxFailureRatio: 1, Order: 1, FailureAction: 2}), ""},
		{update(&swarmv1.UpdateConfig{MaxFailureRatio: 1.5}), "max_failure_ratio 1.5"},
		{update(&swarmv1.UpdateConfig{MaxFailureRatio: float32(math.NaN())}), "max_failure_ratio NaN"},
		{update(&swarmv1.UpdateConfig{Delay: durationpb.New(-1)}), "from 0 to"},
		{update(&swarmv1.UpdateConfig{Monitor: &durationpb.Duration{Seconds: math.MaxInt64}}), "from 0 to"},
		{update(&swarmv1.UpdateConfig{Parallelism: math.MaxUint64}), "tasks at a time"},
		{func(s *swarmv1.ServiceSpec) {
			s.Mode = &swarmv1.ServiceSpec_Global{Global: &swarmv1.GlobalService{}}
			s.Rollback = &swarmv1.UpdateConfig{Order: swarmv1.UpdateConfig_START_FIRST}
			s.Endpoint = &swarmv1.EndpointSpec{Ports: []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 8080, PublishMode: swarmv1.PortConfig_HOST}}}
		}, "the rollback cannot start a task first"},
	} {
		s := spec("busybox", 1)
		c.change(s)
		err := check(s)
		if c.want == "" && err == nil {
			continue
		}
		if !errdefs.IsInvalidArgument(err) || c.want == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", s, err, c.want)
		}
	}
}

// TestTheNetworkOfATask has the form of a Swarm's managers.
func TestTheNetworkOfATask(t *testing.T) {
	t.Parallel()
	s := &swarmv1.Service{Id: "s", Spec: spec("busybox", 1)}
	if all := newTask(s, "t", "n", 1, time.Now()).GetNetworks(); all != nil {
		t.Errorf("networks of a task that names none: %v", all)
	}
	s.Spec.Task.Networks = []*swarmv1.NetworkAttachmentConfig{{Target: "host"}}
	all := newTask(s, "t", "n", 1, time.Now()).GetNetworks()
	if len(all) != 1 || all[0].GetNetwork().GetDriverState().GetName() != "host" || all[0].GetNetwork().GetSpec().GetAnnotations().GetLabels()[predefinedLabel] != "true" || proto.Size(all[0].GetNetwork().GetIpam()) == 0 {
		t.Errorf("networks: %v", all)
	}
}
