package control

import (
	"time"

	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
)

// pullInterval is the time between two messages of WatchPulls while pulls are under way.
const pullInterval = 500 * time.Millisecond

// WatchPulls sends the pulls under way. Without any it waits for the next one.
func (s *imageServer) WatchPulls(_ *longshorev1.WatchPullsRequest, stream grpc.ServerStreamingServer[longshorev1.WatchPullsResponse]) error {
	ctx := stream.Context()
	for {
		list, changed := s.srv.all.Images.Underway()
		if err := stream.Send(pullsOf(list)); err != nil {
			return err
		}
		var tick <-chan time.Time
		if len(list) > 0 {
			tick = time.After(pullInterval)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick:
		}
	}
}

func pullsOf(list []core.PullUnderway) *longshorev1.WatchPullsResponse {
	resp := &longshorev1.WatchPullsResponse{}
	for _, p := range list {
		out := &longshorev1.Pull{Owner: string(p.Owner), Name: p.Ref, Begun: view.Time(p.Began), Status: p.Status}
		for _, b := range p.Blobs {
			out.Layers = append(out.Layers, view.Progress(b))
		}
		resp.Pulls = append(resp.Pulls, out)
	}
	return resp
}
