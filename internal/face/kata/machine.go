package kata

import (
	"context"
	"net/netip"
	"strconv"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
	"github.com/longshore/longshore/internal/guest"
)

// noARP is the only used one of raw_flags: IFF_NOARP.
const noARP = 0x80

// CopyFile implements katav1.AgentServiceService.
func (s *service) CopyFile(_ context.Context, req *katav1.CopyFileRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.face.o.Machine.CopyFile(guest.File{
		Path: req.GetPath(), Mode: req.GetFileMode(), DirMode: req.GetDirMode(), UID: int(req.GetUid()), GID: int(req.GetGid()),
		Size: req.GetFileSize(), Offset: req.GetOffset(), Data: req.GetData(),
	})
}

// GetVolumeStats implements katav1.AgentServiceService.
func (s *service) GetVolumeStats(_ context.Context, req *katav1.VolumeStatsRequest) (*katav1.VolumeStatsResponse, error) {
	u, err := s.face.o.Machine.VolumeUsage(req.GetVolumeGuestPath())
	if err != nil {
		return nil, err
	}
	return &katav1.VolumeStatsResponse{
		Usage: []*katav1.VolumeUsage{
			{Unit: katav1.VolumeUsage_BYTES, Total: u.Bytes, Available: u.BytesFree, Used: u.BytesUsed},
			{Unit: katav1.VolumeUsage_INODES, Total: u.Inodes, Available: u.InodesFree, Used: u.Inodes - u.InodesFree},
		},
		VolumeCondition: &katav1.VolumeCondition{Message: "OK"},
	}, nil
}

// UpdateInterface implements katav1.AgentServiceService.
func (s *service) UpdateInterface(ctx context.Context, req *katav1.UpdateInterfaceRequest) (*katatypes.Interface, error) {
	in := req.GetInterface()
	if in == nil {
		return nil, refuse(codes.InvalidArgument, "no interface")
	}
	link := guest.Link{Name: in.GetName(), MAC: in.GetHwAddr(), MTU: int(min(in.GetMtu(), 1<<20)), NoARP: in.GetRawFlags()&noARP != 0, PCI: in.GetDevicePath()}
	for _, a := range in.GetIPAddresses() {
		addr, err := netip.ParseAddr(a.GetAddress())
		if err != nil {
			return nil, refuse(codes.InvalidArgument, "interface %s: %v", clip(in.GetName()), err)
		}
		bits, err := strconv.Atoi(a.GetMask())
		if err != nil || bits < 0 || bits > addr.BitLen() {
			return nil, refuse(codes.InvalidArgument, "interface %s: address %s: mask %q: the length of a prefix is wanted", clip(in.GetName()), addr, clip(a.GetMask()))
		}
		link.Addresses = append(link.Addresses, netip.PrefixFrom(addr, bits))
	}
	err := s.face.o.Machine.UpdateLink(ctx, link)
	if errdefs.IsNotFound(err) { // the shim tries again when it finds these words
		err = refuse(codes.Internal, "Link not found: %v", err)
	}
	return in, err
}

// ListInterfaces implements katav1.AgentServiceService.
func (s *service) ListInterfaces(ctx context.Context, _ *katav1.ListInterfacesRequest) (*katav1.Interfaces, error) {
	links, err := s.face.o.Machine.Links(ctx)
	if err != nil {
		return nil, err
	}
	out := &katav1.Interfaces{}
	for _, l := range links {
		one := &katatypes.Interface{Name: l.Name, HwAddr: l.MAC, Mtu: uint64(l.MTU)}
		for _, a := range l.Addresses {
			one.IPAddresses = append(one.IPAddresses, &katatypes.IPAddress{Family: family(a.Addr()), Address: a.Addr().String(), Mask: strconv.Itoa(a.Bits())})
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out, nil
}

func family(a netip.Addr) katatypes.IPFamily {
	if a.Is6() {
		return katatypes.IPFamily_v6
	}
	return katatypes.IPFamily_v4
}

// UpdateRoutes implements katav1.AgentServiceService. It answers all routes.
func (s *service) UpdateRoutes(ctx context.Context, req *katav1.UpdateRoutesRequest) (*katav1.Routes, error) {
	if req.GetRoutes() == nil {
		return nil, refuse(codes.InvalidArgument, "no routes")
	}
	var routes []guest.Route
	for _, in := range req.GetRoutes().GetRoutes() {
		r, err := toRoute(in)
		if err != nil {
			return nil, refuse(codes.InvalidArgument, "route to %q: %v", clip(in.GetDest()), err)
		}
		routes = append(routes, r)
	}
	if err := s.face.o.Machine.UpdateRoutes(ctx, routes); err != nil {
		return nil, err
	}
	return s.routes(ctx)
}

func toRoute(in *katatypes.Route) (r guest.Route, err error) {
	r = guest.Route{IPv6: in.GetFamily() == katatypes.IPFamily_v6, Link: in.GetDevice(), Scope: uint8(in.GetScope()), Flags: in.GetFlags(), MTU: int(in.GetMtu())}
	if d := in.GetDest(); d != "" {
		if r.To, err = toPrefix(d); err != nil {
			return r, err
		}
		r.IPv6 = r.To.Addr().Is6()
	}
	if g := in.GetGateway(); g != "" {
		if r.Gateway, err = netip.ParseAddr(g); err != nil {
			return r, err
		}
		r.IPv6 = r.Gateway.Is6()
	}
	if src := in.GetSource(); src != "" {
		p, err := toPrefix(src)
		if err != nil {
			return r, err
		}
		r.Source = p.Addr()
	}
	return r, nil
}

// toPrefix reads an address with or without the length of a prefix.
func toPrefix(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// ListRoutes implements katav1.AgentServiceService.
func (s *service) ListRoutes(ctx context.Context, _ *katav1.ListRoutesRequest) (*katav1.Routes, error) {
	return s.routes(ctx)
}

func (s *service) routes(ctx context.Context) (*katav1.Routes, error) {
	list, err := s.face.o.Machine.Routes(ctx)
	if err != nil {
		return nil, err
	}
	out := &katav1.Routes{}
	for _, r := range list {
		one := &katatypes.Route{Device: r.Link, Scope: uint32(r.Scope), Flags: r.Flags, Mtu: uint32(r.MTU)}
		if r.IPv6 {
			one.Family = katatypes.IPFamily_v6
		}
		if r.To.IsValid() && r.To.Bits() > 0 {
			one.Dest = r.To.String()
		}
		if r.Gateway.IsValid() {
			one.Gateway = r.Gateway.String()
		}
		if r.Source.IsValid() {
			one.Source = r.Source.String()
		}
		out.Routes = append(out.Routes, one)
	}
	return out, nil
}

// AddARPNeighbors implements katav1.AgentServiceService.
func (s *service) AddARPNeighbors(ctx context.Context, req *katav1.AddARPNeighborsRequest) (*emptypb.Empty, error) {
	if req.GetNeighbors() == nil {
		return nil, refuse(codes.InvalidArgument, "no neighbours")
	}
	var list []guest.Neighbor
	for _, in := range req.GetNeighbors().GetARPNeighbors() {
		p, err := toPrefix(in.GetToIPAddress().GetAddress())
		if err != nil {
			return nil, refuse(codes.InvalidArgument, "neighbour %q: %v", clip(in.GetToIPAddress().GetAddress()), err)
		}
		list = append(list, guest.Neighbor{Address: p.Addr(), MAC: in.GetLladdr(), Link: in.GetDevice(), State: int(in.GetState()), Flags: int(in.GetFlags())})
	}
	return &emptypb.Empty{}, s.face.o.Machine.AddNeighbors(ctx, list)
}
