package session

import (
	"context"
	"time"

	"google.golang.org/grpc"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/identity"
)

// The times of a certificate's renewal.
const (
	renewPause   = 5 * time.Second // after a failure, doubling, and between two requested ones
	longestRenew = time.Hour
	leastRenew   = time.Second
	lookEvery    = time.Minute // at the clock: timers stand still while a machine sleeps
)

// certificate renews the node's in time, or when a manager asks for that, and resumes
// the session with the new one.
func (c *Client) certificate(ctx context.Context, conn *grpc.ClientConn) error {
	due, pause := c.o.Member.Identity().RenewAt(), renewPause
	for {
		if err := c.untilDue(ctx, due); err != nil {
			return err
		}
		// The roots may be others than when the session began.
		now := c.o.Member.Identity()
		next, err := now.Renew(ctx, conn)
		if err == nil {
			err = c.o.Member.Renewed(next)
		}
		if err == nil {
			c.renewed = time.Now()
			return errAgain
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// One that is valid for a minute is not left alone for five.
		wait := min(pause, max(time.Until(now.NotAfter)/4, leastRenew))
		c.o.Logger.WarnContext(ctx, "could not renew the node's certificate; will retry", "error", err, "expires", now.NotAfter, "pause", wait)
		due, pause = time.Now().Add(wait), min(2*pause, longestRenew)
	}
}

// untilDue waits for a time, and less when a manager asks for another certificate.
func (c *Client) untilDue(ctx context.Context, due time.Time) error {
	for {
		wait := time.Until(due.Round(0))
		if wait <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(min(wait, lookEvery))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-c.renew:
			timer.Stop()
			sleep(ctx, renewPause-time.Since(c.renewed))
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// wantsRenewal reports whether a manager asks for another certificate: because it says
// so, or because the node is to be a worker again.
func wantsRenewal(n *swarmv1.Node, id *identity.Identity) bool {
	return n.GetCertificate().GetStatus().GetState() == swarmv1.IssuanceStatus_ROTATE ||
		n.GetSpec() != nil && n.GetSpec().GetDesiredRole() == swarmv1.NodeRole_WORKER && id.Role != identity.RoleWorker
}
