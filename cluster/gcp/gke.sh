#!/bin/bash
# GKE with A3 nodes of eight H100, for cluster/kubernetes: ./gke.sh PROJECT [ZONE]
set -euo pipefail
if [ $# -lt 1 ]; then
    sed -n '2s/^# //p' "$0"
    exit 2
fi
project=$1 zone=${2:-us-central1-a} name=lab
# Dataplane V2 enforces NetworkPolicies; Workload Identity keeps the nodes' credentials from pods
gcloud container clusters create "$name" --project "$project" --zone "$zone" --release-channel regular \
    --machine-type e2-standard-4 --num-nodes 1 --enable-autoscaling --min-nodes 1 --max-nodes 4 \
    --enable-dataplane-v2 --enable-multi-networking --enable-ip-alias \
    --workload-pool "$project.svc.id.goog" --shielded-secure-boot --shielded-integrity-monitoring \
    --addons GcpFilestoreCsiDriver,GcePersistentDiskCsiDriver
gcloud container node-pools create a3 --project "$project" --cluster "$name" --zone "$zone" \
    --machine-type a3-highgpu-8g --accelerator type=nvidia-h100-80gb,count=8,gpu-driver-version=latest \
    --enable-autoscaling --num-nodes 0 --min-nodes 0 --max-nodes 4 --placement-type COMPACT --enable-gvnic \
    --node-labels lab/capacity=on-demand
gcloud container node-pools create spot --project "$project" --cluster "$name" --zone "$zone" \
    --machine-type g2-standard-48 --accelerator type=nvidia-l4,count=4,gpu-driver-version=latest --spot \
    --enable-autoscaling --num-nodes 0 --min-nodes 0 --max-nodes 8 --enable-gvnic \
    --node-labels lab/capacity=spot --node-taints lab/capacity=spot:NoSchedule
gcloud container clusters get-credentials "$name" --project "$project" --zone "$zone"
echo "kubectl apply -k cluster/kubernetes/overlays/gpu"
