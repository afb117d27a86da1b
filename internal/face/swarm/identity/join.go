package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Request asks to join a Swarm.
type Request struct {
	Addr         string // host:port of a manager
	Token        Token
	Availability swarmv1.NodeSpec_Availability
}

// The times of the calls that lead to a certificate, and of the pauses between tries.
const (
	callTimeout  = 5 * time.Second
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Join makes the node a member of a Swarm, with a new key. PermissionDenied if the manager is not
// of the token's Swarm, InvalidArgument if the Swarm refuses the token, FailedPrecondition if the
// node gets another role than worker, Unavailable if nobody answers.
func Join(ctx context.Context, r Request) (*Identity, error) {
	roots, err := fetchRoots(ctx, r)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, fmt.Errorf("join: the swarm's roots hold no certificate: %w", errdefs.ErrPermissionDenied)
	}
	conn, err := dial(r.Addr, asStranger(pool))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	key, cert, err := issue(ctx, conn, &swarmv1.IssueNodeCertificateRequest{Token: r.Token.text, Availability: r.Availability})
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	id, err := New(key, cert, roots)
	switch {
	case err != nil:
		return nil, fmt.Errorf("join: %w", err)
	case id.Expired(time.Now()):
		return nil, fmt.Errorf("join: the certificate of node %s has expired already, at %s: the clocks of this machine and of the managers differ: %w", id.NodeID, id.NotAfter.Format(time.RFC3339), errdefs.ErrFailedPrecondition)
	case id.Role != RoleWorker:
		return nil, fmt.Errorf("join: the token makes a %s of node %s, and this node can be a worker only: use the workers' token, and remove that node: %w", id.Role, id.NodeID, errdefs.ErrFailedPrecondition)
	}
	return id, nil
}

// Renew gets a new key and certificate for the same node by a connection that id was
// used for.
func (id *Identity) Renew(ctx context.Context, conn grpc.ClientConnInterface) (*Identity, error) {
	key, cert, err := issue(ctx, conn, &swarmv1.IssueNodeCertificateRequest{})
	if err != nil {
		return nil, err
	}
	next, err := id.with(key, cert)
	if err != nil {
		return nil, err
	}
	if next.NodeID != id.NodeID || next.ClusterID != id.ClusterID {
		return nil, fmt.Errorf("renew the certificate: it is for node %s of %s: %w", next.NodeID, next.ClusterID, errdefs.ErrPermissionDenied)
	}
	return next, nil
}

// SmallBuffers are the options of a connection to a manager that is idle most of the time. gRPC
// keeps 32 KB for reading and as much for writing otherwise. TLS reads and writes records of at most
// 16 KB in any case.
func SmallBuffers() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(16 << 10)}
}

func dial(addr string, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, append(SmallBuffers(), grpc.WithTransportCredentials(creds))...)
	if err != nil {
		return nil, fmt.Errorf("manager %s: %w", addr, err)
	}
	return conn, nil
}

// fetchRoots asks the manager for its roots, and checks them with the token.
func fetchRoots(ctx context.Context, r Request) ([]byte, error) {
	conn, err := dial(r.Addr, strange())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := swarmv1.NewCAClient(conn).GetRootCACertificate(ctx, &swarmv1.GetRootCACertificateRequest{})
	if err != nil {
		return nil, fmt.Errorf("join: ask %s for the swarm's roots: %w", r.Addr, classed(err))
	}
	if !r.Token.Trusts(resp.GetCertificate()) {
		return nil, fmt.Errorf("join: %s is of another swarm than the token: %w", r.Addr, errdefs.ErrPermissionDenied)
	}
	return resp.GetCertificate(), nil
}

// issue makes a key, has the manager certify it, and waits for that.
func issue(ctx context.Context, conn grpc.ClientConnInterface, req *swarmv1.IssueNodeCertificateRequest) (key, cert []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a request for a certificate: %w", err)
	}
	req.Csr = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	key, err = encodeKey(private)
	if err != nil {
		return nil, nil, err
	}
	ca := swarmv1.NewNodeCAClient(conn)
	call, cancel := context.WithTimeout(ctx, callTimeout)
	resp, err := ca.IssueNodeCertificate(call, req)
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("ask for a certificate: %w", classed(err))
	}
	cert, err = await(ctx, ca, resp.GetNodeId(), req.GetCsr())
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of node %s: %w", resp.GetNodeId(), err)
	}
	return key, cert, nil
}

// await asks until the certificate for csr is issued or refused.
func await(ctx context.Context, ca swarmv1.NodeCAClient, node string, csr []byte) ([]byte, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		resp, err := ca.NodeCertificateStatus(call, &swarmv1.NodeCertificateStatusRequest{NodeId: node})
		cancel()
		switch state := resp.GetStatus().GetState(); {
		case err != nil && !mayPass(err):
			return nil, classed(err)
		case err != nil:
		case state == swarmv1.IssuanceStatus_FAILED:
			return nil, fmt.Errorf("it was refused: %s: %w", resp.GetStatus().GetErr(), errdefs.ErrFailedPrecondition)
		case state == swarmv1.IssuanceStatus_ISSUED && bytes.Equal(resp.GetCertificate().GetCsr(), csr):
			return resp.GetCertificate().GetCertificate(), nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("it was not issued in time: %w", errors.Join(errdefs.ErrUnavailable, err))
		case <-timer.C:
		}
	}
}

// mayPass reports whether asking again may help.
func mayPass(err error) bool {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Unknown:
		return true
	default:
		return false
	}
}

// classed gives a manager's error the class of its code.
func classed(err error) error {
	st := status.Convert(err)
	class := error(errdefs.ErrUnavailable)
	switch st.Code() {
	case codes.InvalidArgument:
		class = errdefs.ErrInvalidArgument
	case codes.PermissionDenied, codes.Unauthenticated:
		class = errdefs.ErrPermissionDenied
	case codes.NotFound:
		class = errdefs.ErrNotFound
	case codes.FailedPrecondition:
		class = errdefs.ErrFailedPrecondition
	default: // it may pass
	}
	return fmt.Errorf("%s: %w", plain(st.Message()), class)
}

// plain is the text of a connection that failed, without gRPC's wrapping.
func plain(text string) string {
	quoted, wrapped := strings.CutPrefix(text, "connection error: desc = ")
	inner, err := strconv.Unquote(quoted)
	if !wrapped || err != nil {
		return text
	}
	for _, s := range []string{"transport: ", "authentication handshake failed: ", "Error while dialing: "} {
		inner = strings.TrimPrefix(inner, s)
	}
	return inner
}
