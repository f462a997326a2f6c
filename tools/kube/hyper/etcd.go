package main

import (
	"net/url"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// newEtcdCommand runs one etcd member without its own security: it listens where it is told, and nowhere else.
func newEtcdCommand() *cobra.Command {
	config := embed.NewConfig()
	var client, peer string
	command := &cobra.Command{
		Use:          "etcd",
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			clientURL, err := url.Parse(client)
			if err != nil {
				return err
			}
			peerURL, err := url.Parse(peer)
			if err != nil {
				return err
			}
			config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
			config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
			config.InitialCluster = config.InitialClusterFromName(config.Name)
			return serve(command, config)
		},
	}
	command.Flags().StringVar(&config.Dir, "data-dir", "default.etcd", "where the data is kept")
	command.Flags().StringVar(&client, "listen-client-url", "http://127.0.0.1:2379", "where clients are served")
	command.Flags().StringVar(&peer, "listen-peer-url", "http://127.0.0.1:2380", "where other members would be served")
	command.Flags().BoolVar(&config.UnsafeNoFsync, "unsafe-no-fsync", false, "do not wait for the disk")
	return command
}

func serve(command *cobra.Command, config *embed.Config) error {
	stop, cancel := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	config.LogLevel = "warn"
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-stop.Done():
		return nil
	case err := <-server.Err():
		return err
	}
}
