#!/bin/bash
# One machine with four A10G for phases 1 and 2, without a cluster: ./ec2.sh KEY SUBNET SECURITY_GROUP
# The group must allow ssh alone: JupyterLab is reached through the tunnel that is printed at the end.
set -euo pipefail
if [ $# -ne 3 ]; then
    sed -n '2,3s/^# //p' "$0"
    exit 2
fi
type=${LAB_INSTANCE:-g5.12xlarge}
region=${AWS_REGION:-us-east-2}
# Ubuntu 22.04 with NVIDIA's driver, by AWS; its newest one, since drivers get security fixes
image=$(aws ssm get-parameter --region "$region" --query Parameter.Value --output text \
    --name /aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id)
setup=$(
    cat <<'END'
#!/bin/bash
apt-get update
apt-get install -y python3.11 python3.11-venv git g++
# a machine that nobody uses turns itself off: no login and no busy GPU for an hour
cat >/etc/cron.d/lab-idle <<'CRON'
*/10 * * * * root [ -n "$(who)" ] || nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits | grep -qvx 0 && touch /run/lab-used; [ -n "$(find /run/lab-used -mmin -60 2>/dev/null)" ] || [ "$(cut -d. -f1 /proc/uptime)" -lt 3600 ] || shutdown now
CRON
END
)
instance=$(aws ec2 run-instances --region "$region" --image-id "$image" --instance-type "$type" \
    --key-name "$1" --subnet-id "$2" --security-group-ids "$3" --user-data "$setup" \
    --metadata-options HttpTokens=required --instance-initiated-shutdown-behavior stop \
    --block-device-mappings 'DeviceName=/dev/sda1,Ebs={VolumeSize=200,VolumeType=gp3,Encrypted=true}' \
    --tag-specifications 'ResourceType=instance,Tags=[{Key=Name,Value=lab}]' \
    --query 'Instances[0].InstanceId' --output text)
aws ec2 wait instance-running --region "$region" --instance-ids "$instance"
address=$(aws ec2 describe-instances --region "$region" --instance-ids "$instance" \
    --query 'Reservations[0].Instances[0].PublicIpAddress' --output text)
cat <<END
$instance runs at $address. Copy the repository there, then:
    ssh -L 8888:localhost:8888 ubuntu@$address
    cd lab && LAB_PYTHON=python3.11 ./lab start
    aws ec2 terminate-instances --region $region --instance-ids $instance     # at the end
END
