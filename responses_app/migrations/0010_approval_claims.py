from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('responses_app', '0009_vector_stores'),
    ]

    operations = [
        migrations.CreateModel(
            name='ApprovalClaim',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=64)),
                ('request_id', models.CharField(max_length=64)),
                ('response_id', models.CharField(max_length=64)),
                ('claimed_at', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['claimed_at'], name='approvalclaim_claimed')],
                'constraints': [models.UniqueConstraint(fields=('project', 'request_id'), name='approvalclaim_request')],
            },
        ),
    ]
